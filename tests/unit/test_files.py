"""Atomic replacement; files that grow by whole lines, and what a resume does to them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offpolicy.files import Disk, JsonlFile, UniqueJsonlFile, atomic_file, atomic_write, write_output


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["env_steps"] for line in path.read_text().splitlines()]


def write_steps(path: Path, *steps: int) -> None:
    path.write_text("".join(json.dumps({"env_steps": step}) + "\n" for step in steps))


def test_after_a_resume_no_step_appears_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 10, 20, 30, 40)
    file = JsonlFile(path, resume_step=20)
    file.append({"env_steps": 25})
    file.close()
    assert steps_in(path) == [10, 20, 25]
    assert steps_in(tmp_path / "metrics.superseded.jsonl") == [30, 40]
    JsonlFile(path, resume_step=20).close()  # a second resume adds to it
    assert steps_in(tmp_path / "metrics.superseded.jsonl") == [30, 40, 25]


def test_a_last_line_that_is_torn_or_impossible_is_dropped_and_one_without_its_newline_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for last, kept in (
        ('{"env_steps": 20}', [20]), ('{"env_steps": 20, "perf/ste', []), ('{"env_steps": 1' + "0" * 400 + "}", []),
        ('{"env_steps": ' + "[" * 100_000, []),
    ):  # fmt: skip
        path.write_text(f'{{"env_steps": 10}}\n{last}')
        file = JsonlFile(path, None)
        file.append({"env_steps": 30})
        file.close()
        assert steps_in(path) == [10, *kept, 30]


def test_a_line_that_fits_only_in_part_is_taken_back(tmp_path: Path) -> None:
    """A limit of 40 bytes lets the first line of 26 through and 14 bytes of the second."""
    path = tmp_path / "metrics.jsonl"
    file = JsonlFile(path, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
    try:
        file.append({"env_steps": 10, "x": 1})
        with pytest.raises(OSError, match="only 14 of 26 bytes could be written"):
            file.append({"env_steps": 20, "x": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    file.append({"env_steps": 30, "x": 3})
    file.close()
    assert steps_in(path) == [10, 30]


def test_atomic_write_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for durable in (False, True):
        atomic_write(path, "ü", durable=durable)
        assert path.read_bytes() == "ü".encode()
        atomic_write(path, b"\x00\xff", durable=durable)
        assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["a.json"]
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        atomic_write(tmp_path / "b", "new", durable=True)
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b"]


def test_an_error_in_the_block_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write_half() -> None:
        with atomic_file(path, durable=True) as file:
            file.write(b"new")
            assert path.read_text() == "old"
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_link_is_removed_but_never_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    Disk().remove(tmp_path / "link")
    assert os.listdir(tmp_path) == ["kept"]


def test_lines_of_more_updates_than_the_checkpoint_are_superseded_too(tmp_path: Path) -> None:
    """In free mode the learner goes on at the step of the checkpoint; the resumed run would go back behind that."""
    path = tmp_path / "metrics.jsonl"
    lines = [{"env_steps": 10, "train/n_updates": 5}, {"env_steps": 20, "train/n_updates": 19}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    JsonlFile(path, resume_step=20, resume_updates=15).close()
    assert steps_in(path) == [10]
    assert steps_in(tmp_path / "metrics.superseded.jsonl") == [20]


def test_a_record_of_the_same_env_step_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for lines in ([(10, 1), (20, 2), (20, 3)], [(20, 4)], [(20, 5), (30, 6)]):  # the run resumes twice
        file = UniqueJsonlFile(path, None)
        for env_steps, updates in lines:
            file.append({"env_steps": env_steps, "train/n_updates": updates})
        file.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["env_steps"], line["train/n_updates"]) for line in found] == [(10, 1), (20, 5), (30, 6)]


def test_the_last_record_stays_where_a_newer_one_of_its_step_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pwrite = tmp_path / "metrics.jsonl", os.pwrite
    file = UniqueJsonlFile(path, None)
    file.append({"env_steps": 10, "loss": 0.5})
    before = path.read_bytes()
    monkeypatch.setattr(os, "pwrite", lambda fd, content, offset: pwrite(fd, content[: len(before)], offset))
    with pytest.raises(OSError, match=r"only \d+ of \d+ bytes"):
        file.append({"env_steps": 10, "eval/return_mean": 1.5})
    monkeypatch.undo()
    assert path.read_bytes() == before
    file.append({"env_steps": 10, "eval/return_mean": 2.5})
    file.close()
    assert json.loads(path.read_text()) == {"env_steps": 10, "loss": 0.5, "eval/return_mean": 2.5}


def test_an_output_is_written_through_a_link_and_to_a_pipe(tmp_path: Path) -> None:
    """As to a device: replaced, /dev/null would be a file from then on."""
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to("target")
    for content in ("new", "after"):
        write_output("--html", link, content)
        assert target.read_text() == content
    assert link.is_symlink()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output("--html", pipe, "page")
    assert os.read(reader, 10) == b"page"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_dash_is_standard_output_which_keeps_what_is_printed(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from offpolicy.files import write_output\n"
        "print('before'); write_output('-o', Path('-'), 'page '); print('after')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "out").read_text() == "before\npage after\n"

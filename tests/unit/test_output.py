from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpolicy import output
from offpolicy.output import counted, drain, is_behind, nonblocking, return_text, three_digits
from tests.full_pipe import LIMIT_S, FullPipe
from tests.unit.processes.test_signals import shell


@pytest.fixture
def pipe() -> Iterator[FullPipe]:
    made = FullPipe()
    yield made
    if not made.file.closed:
        made.close()


def test_writes_to_a_full_pipe_return_and_arrive_in_their_order_once_it_is_read(pipe: FullPipe) -> None:
    texts = [f"{number:03d}" * 500 + "\n" for number in range(200)]
    for text in texts:
        assert pipe.stream.write(text) == len(text)
    assert is_behind(pipe.stream)
    assert pipe.close() == "".join(texts)
    assert not is_behind(pipe.stream)


def test_the_end_waits_once_for_somebody_who_reads_nothing_and_again_for_one_who_does(
    pipe: FullPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PATIENCE_S", 0.2)
    pipe.stream.write("the end\n")
    drain(pipe.stream)
    assert is_behind(pipe.stream)
    monkeypatch.setattr(output, "PATIENCE_S", LIMIT_S)
    begun_s = time.monotonic()
    drain(pipe.stream)
    assert time.monotonic() - begun_s < LIMIT_S / 2
    pipe.read()
    while is_behind(pipe.stream):
        assert time.monotonic() - begun_s < LIMIT_S
        time.sleep(0.005)
    assert pipe.close() == "the end\n"


@pytest.mark.alone
def test_a_long_text_is_waited_for_as_long_as_some_of_it_is_read(
    pipe: FullPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole texts were counted: a slow terminal lost the end of a traceback, and with it the cause."""
    monkeypatch.setattr(output, "PATIENCE_S", 0.5)
    pipe.pause_s = 0.05  # after 4 KiB of 64 in the pipe and 96 behind it
    pipe.stream.write(text := 96 * 1024 * "x")
    pipe.read()
    drain(pipe.stream)
    assert not is_behind(pipe.stream)
    pipe.pause_s = 0.0
    assert pipe.close() == text


def test_a_reader_that_is_gone_is_an_error_of_the_next_write() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        stream = nonblocking(file)
        stream.write("to nobody\n")
        drain(stream)
        with pytest.raises(BrokenPipeError):
            stream.write("again\n")
        assert not is_behind(stream)


def test_what_others_have_printed_before_comes_before() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w") as file:
        stream = nonblocking(file)
        file.write("printed\n")
        stream.write("ours\n")
        drain(stream)
        assert [source.readline(), source.readline()] == ["printed\n", "ours\n"]


OPEN = "import sys; from offpolicy.output import open_streams; open_streams(); print(sys.stdout.fileno()); {then}"


def test_closed_streams_are_opened_and_no_file_takes_their_place(tmp_path: Path) -> None:
    code = OPEN.format(then=f"fd = open({str(tmp_path / 'f')!r}, 'w').fileno(); sys.exit(0 if fd > 2 else 1)")
    for closed in (">&-", ">&- 2>&- <&-"):
        assert shell(f"$PY -c {code!r} {closed}".replace("$PY", '"$PY"')).returncode == 0


PRINTING = """
import sys
from offpolicy.output import drop_refused
drop_refused("stdout", "stderr")
print("out", 100_000 * "x", flush=True)
sys.stdout.buffer.write(b"bytes")
sys.stderr.write("err\\n")
sys.exit(74)
"""


@pytest.mark.promise("full-disk", "exit-codes")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_full_disk_refuses_is_dropped_and_changes_no_exit_code(unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    command = f'PYTHONUNBUFFERED={unbuffered} "$PY" {tmp_path}/printing.py'
    assert shell(f"{command} > /dev/full 2> /dev/full").returncode == 74
    written = shell(command)
    assert (written.returncode, written.stderr) == (74, "err\n")
    assert written.stdout.replace("x", "") == "out \nbytes"


def test_small_and_huge_returns_can_be_read() -> None:
    """Returns of 0.010 to 0.013 were all 0.0, one of -0.01 was -0.0, and one of -1.23e13 had 17 characters."""
    texts = {
        0.01234: "0.0123", -0.04: "-0.0400", 9.994: "9.99", 9.996: "10.0", -151.26: "-151.3",
        999_999.9: "999999.9", -1.23e13: "-1.23e13", -0.0: "0.0", float("nan"): "nan",
    }  # fmt: skip
    assert {value: return_text(value) for value in texts} == texts
    assert return_text(-1244.53, ",") == "-1,244.5"
    assert three_digits(-0.0) == "0.00"


def test_a_number_of_things_is_said_in_english() -> None:
    assert [counted(number, "thread") for number in (0, 1, 2000)] == ["0 threads", "1 thread", "2,000 threads"]

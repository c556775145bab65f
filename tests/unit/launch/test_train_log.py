from __future__ import annotations

import os
from pathlib import Path

from offpolicy.launch.train_log import HEAD, LONGEST, MOST_NOTICE, TAIL, open_train_log, trim_train_log

SMALL = {"longest": 100, "head": 10, "tail": 20}


def test_of_a_longer_log_head_and_tail_stay_and_the_rest_is_counted(tmp_path: Path) -> None:
    with open_train_log(tmp_path / "log") as fd:
        os.write(fd, b"h" * 10 + b"m" * 1000 + b"t" * 20)
        trim_train_log(fd, **SMALL)
        os.write(fd, b"after\n")
    text = (tmp_path / "log").read_text()
    assert text == "hhhhhhhhhh\n[... 1,000 bytes left out ...]\nttttttttttttttttttttafter\n"


def test_a_second_cut_counts_what_the_first_one_left_out(tmp_path: Path) -> None:
    with open_train_log(tmp_path / "log") as fd:
        for _ in range(2):
            os.write(fd, b"h" * 10 + b"m" * 1000 + b"t" * 20)
            trim_train_log(fd, **SMALL)
    assert "[... 2,030 bytes left out ...]\n" in (tmp_path / "log").read_text()


def test_a_process_that_goes_on_writing_finds_the_new_end(tmp_path: Path) -> None:
    with open_train_log(tmp_path / "log") as fd:
        writer = os.dup(fd)
        for _ in range(50):
            os.write(writer, b"a line of 20 bytes..\n")
            trim_train_log(fd, **SMALL)
        os.close(writer)
    assert os.path.getsize(tmp_path / "log") <= 130
    assert (tmp_path / "log").read_bytes().endswith(b"a line of 20 bytes..\n")


def test_the_lines_of_earlier_starts_stay(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    with open_train_log(tmp_path / "log") as fd:
        os.write(fd, b"now\n")
    assert (tmp_path / "log").read_text() == "before\nnow\n"


def test_the_log_of_a_run_that_has_ended_is_no_longer_than_it_may_be(tmp_path: Path) -> None:
    with open_train_log(tmp_path / "log") as fd:
        os.ftruncate(fd, LONGEST + 1)
    assert HEAD + TAIL < (tmp_path / "log").stat().st_size <= HEAD + TAIL + MOST_NOTICE

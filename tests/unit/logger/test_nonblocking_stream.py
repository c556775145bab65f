from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from offpolicy.logger import nonblocking_stream
from offpolicy.logger.nonblocking_stream import drain, is_behind, nonblocking
from tests.full_pipe import LIMIT_S, FullPipe


@pytest.fixture
def pipe() -> Iterator[FullPipe]:
    made = FullPipe()
    yield made
    if not made.file.closed:
        made.close()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_writes_to_a_full_pipe_return_and_arrive_in_their_order_once_it_is_read(pipe: FullPipe) -> None:
    texts = [f"{number:03d}" * 500 + "\n" for number in range(200)]
    for text in texts:
        assert pipe.stream.write(text) == len(text)
    assert is_behind(pipe.stream)
    assert pipe.close() == "".join(texts)
    assert not is_behind(pipe.stream)


def test_of_more_than_may_wait_the_oldest_are_left_out_and_counted_where_they_were(
    pipe: FullPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonblocking_stream, "MOST_BYTES", 24)
    pipe.stream.write("line 00\n")
    wait_until(lambda: not pipe.stream._texts)  # type: ignore[attr-defined]  # the thread waits for the pipe with it
    for number in range(1, 20):
        pipe.stream.write(f"line {number:02d}\n")
    assert pipe.close().splitlines() == [
        "line 00", "offpolicy: 16 lines are left out here: nobody read them", "line 17", "line 18", "line 19",
    ]  # fmt: skip


def test_an_error_of_the_stream_that_is_wrapped_is_raised_by_the_next_write(pipe: FullPipe) -> None:
    def refuse() -> None:
        raise RuntimeError("of the program")

    pipe.read()
    pipe.file.flush = refuse  # type: ignore[method-assign]  # as a class of a program could have it
    pipe.stream.write("hello\n")
    wait_until(lambda: not is_behind(pipe.stream))
    with pytest.raises(RuntimeError, match="of the program"):
        pipe.stream.write("again\n")
    del pipe.file.flush


def test_the_end_waits_once_for_somebody_who_reads_nothing_and_again_for_one_who_does(
    pipe: FullPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonblocking_stream, "PATIENCE_S", 0.2)
    pipe.stream.write("the end\n")
    drain(pipe.stream)
    assert is_behind(pipe.stream)
    monkeypatch.setattr(nonblocking_stream, "PATIENCE_S", LIMIT_S)
    begun_s = time.monotonic()
    drain(pipe.stream)
    assert time.monotonic() - begun_s < LIMIT_S / 2
    pipe.read()
    wait_until(lambda: not is_behind(pipe.stream))
    assert pipe.close() == "the end\n"


def test_a_text_that_is_too_long_for_others_to_wait_beside_it_is_written_whole(
    pipe: FullPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fell out of its own queue, and with it a traceback and the line of the failure."""
    monkeypatch.setattr(nonblocking_stream, "MOST_BYTES", 100)
    pipe.stream.write("first\n")
    wait_until(lambda: not pipe.stream._texts)
    pipe.stream.write(text := 999 * "x" + "\n")
    assert pipe.close() == "first\n" + text


def test_a_long_text_is_waited_for_as_long_as_some_of_it_is_read(
    pipe: FullPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole texts were counted: a slow terminal lost the end of a traceback, and with it the cause."""
    monkeypatch.setattr(nonblocking_stream, "PATIENCE_S", 0.5)
    pipe.pause_s = 0.05  # after 4 KiB of 64 in the pipe and 96 behind it
    pipe.stream.write(text := 96 * 1024 * "x")
    pipe.read()
    drain(pipe.stream)
    assert not is_behind(pipe.stream)
    pipe.pause_s = 0.0
    assert pipe.close() == text


def test_what_others_print_while_nobody_reads_does_not_wait_for_the_thread(pipe: FullPipe) -> None:
    """It held the lock of their buffer, in which the interpreter waits at its end too."""
    pipe.file.write("printed\n")
    pipe.stream.write("ours\n")
    wait_until(lambda: not pipe.stream._texts)  # type: ignore[attr-defined]  # the thread waits for the pipe with it
    time.sleep(0.1)
    others = threading.Thread(target=pipe.file.buffer.write, args=(b"more\n",), daemon=True)
    others.start()
    others.join(LIMIT_S / 4)
    assert not others.is_alive()


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


def test_a_text_without_characters_and_characters_that_the_encoding_lacks_end_nothing() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w", encoding="ascii") as file:
        stream = nonblocking(file)
        for text in ("", "Größe\n"):
            stream.write(text)
        drain(stream)
        assert source.readline() == "Gr??e\n"


def test_a_stream_in_memory_stays_what_it_is() -> None:
    for stream in (io.StringIO(), io.TextIOWrapper(io.BytesIO())):
        assert nonblocking(stream) is stream
        drain(stream)
        assert not is_behind(stream)

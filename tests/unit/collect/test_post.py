"""The process of the hook: episodes are read as they were saved, and every one is answered."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from offpolicy.collect.episode_hook import MESSAGE_BYTES
from offpolicy.collect.post import Episode, load_episode, save_episode, serve, why_not_loadable
from tests.processes.example_hooks import episode


@pytest.mark.parametrize("length", [1, 3])
def test_an_episode_is_read_as_it_was_saved(length: int) -> None:
    saved, file = episode(1, length=length), io.BytesIO()
    save_episode(saved, file)
    loaded = load_episode(file)
    assert (loaded.index, loaded.ep_return, loaded.measure, loaded.terminated) == (1, 1.5, 0.25, True)
    assert [type(getattr(loaded, name)) for name in ("index", "ep_return", "truncated")] == [int, float, bool]
    assert np.isnan(loaded.success)
    for name in ("obs", "action", "reward"):
        left, right = getattr(loaded, name), getattr(saved, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_every_episode_is_answered_in_order_with_its_times_and_its_error() -> None:
    seen: list[int] = []

    def hook(given: Episode) -> None:
        seen.append(given.index)
        if given.index == 1:
            raise ValueError("odd")

    evaluation, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with evaluation, worker:
        for index in range(2):
            with open(os.memfd_create("episode"), "w+b") as file:
                save_episode(episode(index), file)
                socket.send_fds(evaluation, [b"episode"], [file.fileno()])
        evaluation.shutdown(socket.SHUT_WR)
        serve(hook, worker)
        answers = [json.loads(evaluation.recv(1 << 14)) for _ in range(2)]
    assert seen == [answer["index"] for answer in answers] == [0, 1]
    assert answers[0]["error"] is None
    assert answers[1]["error"].splitlines()[-1] == "ValueError: odd"
    assert all(0 < answer["start_ns"] <= answer["end_ns"] for answer in answers)


LONG = "\U0001f600" * 20_000  # twelve bytes of JSON each: the message arrived cut, and its reader's process ended


@pytest.mark.parametrize(("text", "last"), [(LONG, LONG[:8_192]), ("here" + "\n" * 20_000, "ValueError: here")])
def test_the_error_of_a_hook_fits_a_message_and_has_a_last_line(text: str, last: str) -> None:
    def hook(given: Episode) -> None:
        raise ValueError(text)

    evaluation, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with evaluation, worker, open(os.memfd_create("episode"), "w+b") as file:
        save_episode(episode(), file)
        socket.send_fds(evaluation, [b"episode"], [file.fileno()])
        evaluation.shutdown(socket.SHUT_WR)
        serve(hook, worker)
        answer = json.loads(evaluation.recv(MESSAGE_BYTES))
    assert answer["error"].splitlines()[-1] == last


def test_the_reason_a_hook_cannot_be_used_fits_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hook_of_many_words.py").write_text(f"raise ValueError({LONG!r})")
    monkeypatch.syspath_prepend(str(tmp_path))
    reason = why_not_loadable("hook_of_many_words:hook")
    assert reason is not None
    assert reason.startswith("ValueError: ")
    assert len(json.dumps({"error": reason})) < MESSAGE_BYTES


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("os.path:join", None),
        ("os.path:sep", "TypeError: sep is str, which cannot be called"),
        ("no_such_module:hook", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_the_reason_a_hook_cannot_be_used_is_returned(name: str, reason: str | None) -> None:
    assert why_not_loadable(name) == reason


def test_the_process_does_not_import_torch() -> None:
    code = "import sys, offpolicy.collect.post; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

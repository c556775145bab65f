"""Checkpoints with right digests and hostile content: refused by file and key, and passed over for older ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offpolicy.checkpoint import CheckpointStore, check_content
from offpolicy.checkpoint.content import CollectorNumbers, RankStreams, SharedState
from tests.hostile import MISSING, changed, mutations, rewrite

UNIFORM = {"state": "5", "inc": "7", "has_uint32": 0, "uinteger": 0}
FILES: dict[str, Any] = {
    "state": {
        "numbers": {"num_updates": 5, "metrics.critic.count": 5},
        "env_steps": 100,
        "num_collectors": 1,
        "num_ranks": 1,
        "start": [4, 0],
        "replay_first": [0],
        "replay_end": [100],
        "replay_written": [100],
        "has_replay": True,
        "last_eval_step": 50,
        "teacher": None,
        "fingerprint": {"algo.name": "sac"},
    },
    "rank-0": {
        "source": ["ReplaySource", "cpu"],
        "fresh_from": [100],
        "sampler": UNIFORM,
        "updates": "00ff",
        "setting": [2, "overlap"],
        "kernels": "fast",
    },
    "collector-0": {
        "env_steps": 100,
        "vector_steps": 100,
        "policy_steps": 96,
        "policy_lag_sum": 3.0,
        "uniform": UNIFORM,
        "env": {"id": "Pendulum-v1"},
        "why_not_exact": None,
    },
}


def save(root: Path) -> CheckpointStore:
    """A checkpoint at 100 env steps, and the store that checks it."""
    with CheckpointStore(root).begin(100) as draft:
        for name, content in FILES.items():
            draft.add_json(name, content)
    return CheckpointStore(root, check=check_content)


def test_what_a_run_writes_is_read(tmp_path: Path) -> None:
    checkpoint = save(tmp_path / "c").newest_valid()
    assert checkpoint is not None
    state, streams = SharedState.of(checkpoint), RankStreams.of(checkpoint, 0)
    assert (state.num_updates, state.start, state.replay_end) == (5, (4, 0), [100])
    assert (streams.setting, streams.updates) == ((2, "overlap"), b"\x00\xff")
    assert streams.kernels == "fast"
    assert CollectorNumbers.of(checkpoint, "collector-0").policy_lag_sum == 3.0


@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [
        ("state", ("env_steps",), 99, "env_steps: got 99, allowed 100, as its directory is called"),
        ("state", ("numbers", "num_updates"), -1, "numbers: num_updates: got -1, allowed a whole number"),
        ("state", ("start",), [4, 6], "start: got [4, 6], allowed at most 5 updates"),
        ("state", ("replay_end",), [-1], "replay_end: got [-1], allowed a list of 1 whole numbers from 0"),
        ("state", ("last_eval_step",), float("nan"), "not readable JSON: got NaN, allowed finite numbers"),
        ("state", ("fingerprint",), MISSING, "fingerprint: got nothing"),
        ("rank-0", ("updates",), "xyz", "updates: got 'xyz', allowed hexadecimal digits"),
        ("rank-0", ("kernels",), "slow", "kernels: got 'slow', allowed textbook or fast"),
        ("rank-0", ("fresh_from",), [], "fresh_from of a learner rank: got [], allowed one number of each ring"),
        ("collector-0", ("policy_lag_sum",), -1.0, "policy_lag_sum: got -1.0, allowed a number of at least 0"),
    ],
)
def test_hostile_content_costs_its_checkpoint_only_and_is_named(
    tmp_path: Path, name: str, path: tuple[Any, ...], value: Any, said: str
) -> None:
    with CheckpointStore(tmp_path / "c").begin(50) as draft:
        draft.add_json("state", FILES["state"] | {"env_steps": 50, "replay_end": [50]})
    store = save(tmp_path / "c")
    rewrite(tmp_path / "c" / "step-000000000100", name, lambda content: changed(content, path, value))
    found = store.newest_valid()
    (reason,) = store.rejected
    assert found is not None
    assert found.env_steps == 50
    assert f"step-000000000100/{name}.json: {said}" in reason or said in reason
    assert reason.endswith("using step-000000000050 instead")


@settings(max_examples=25)
@given(st.sampled_from(list(FILES)), mutations())
def test_whatever_the_files_say_nothing_but_our_error_comes_of_it(
    tmp_path_factory: pytest.TempPathFactory, name: str, mutate: Callable[[Any], Any]
) -> None:
    root = tmp_path_factory.mktemp("c") / "c"
    store = save(root)
    rewrite(root / "step-000000000100", name, mutate)
    found = store.newest_valid()
    if found is None:
        (reason,) = store.rejected
        assert "step-000000000100" in reason
        assert "got" in reason
        assert len(reason) < 1000


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    store = save(tmp_path / "c")
    rewrite(tmp_path / "c" / "step-000000000100", "state", lambda content: {**content, "teacher": "x" * (17 << 20)})
    assert store.newest_valid() is None
    assert "state.json: got 178" in store.rejected[0]
    assert "allowed at most 16777216" in store.rejected[0]

"""What a collector counts and reports when it is resumed, and when it takes over."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import CheckpointStore
from offpolicy.collect.collector import Progress
from offpolicy.config.schema import RunConfig
from offpolicy.errors import CheckpointError
from offpolicy.processes.control_page import CollectorWord, ControlPage
from offpolicy.types import CollectorTotals
from runners.collector import Collector, CountsBefore, counts_before


class FakeChild:
    index = 1

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, kind: str, text: str) -> None:
        self.sent.append(text)


def two_collectors() -> ControlPage:
    return ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 2))), 1, 2)


def second_collector(control: ControlPage, bad_rows: tuple[int, int] = (0, 0)) -> Any:
    """A collector, number 1 of the run, of which only its counts are there; `bad_rows` of the checkpoint."""
    parts = Collector.__new__(Collector)
    bad = SimpleNamespace(
        begin=lambda: control.collectors[1].set(CollectorWord.BAD_ROWS, bad_rows[1]), replace_obs=lambda progress: None
    )
    fakes: dict[str, Any] = {
        "_child": FakeChild(), "_job": SimpleNamespace(cfg=RunConfig.from_mapping({})), "number": 1,
        "control": control, "_words": control.collectors[1], "bad_rows": bad,
        "env": SimpleNamespace(reset=lambda seed: np.zeros((3, 2), np.float32)), "writer": SimpleNamespace(),
    }  # fmt: skip
    for name, value in fakes.items():
        setattr(parts, name, value)
    return parts


def test_counts_of_the_checkpoint_are_read_until_all_collectors_announce_their_own(tmp_path: Path) -> None:
    """Afterwards the checkpoint may have been removed: a collector that comes back needs none of it."""
    state = {"numbers": {"num_updates": 0}, "env_steps": 30, "num_collectors": 2, "num_ranks": 1, "start": [4, 0]}
    rest = {"replay_first": [], "replay_end": [], "last_eval_step": 0, "fingerprint": {}, "bad_rows": [2]}
    with CheckpointStore(tmp_path / "checkpoints").begin(30) as draft:
        draft.add_json("state", state | rest)
        draft.add_json("collector-1", {"env_steps": 14})
    cfg = RunConfig.from_mapping({"collect": {"num_collectors": 2}})
    job: Any = SimpleNamespace(cfg=cfg, run_dir=str(tmp_path), checkpoint=30)
    control = two_collectors()
    assert counts_before(job, control) == CountsBefore([0, 14], [2, 0])
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError):
        counts_before(job, control)
    for words in control.collectors:
        words.set(CollectorWord.HAS_BEGUN, 1)
    assert counts_before(job, control) == CountsBefore([0, 0], [0, 0])


@pytest.mark.parametrize(("handed_over", "counted"), [(0, (0, 0, 0.0)), (12, (5, 3, 7.0))])
def test_a_collector_that_takes_over_counts_the_steps_that_are_not_made_again(
    handed_over: int, counted: tuple[int, int, float]
) -> None:
    """Where nothing was handed over it begins as the dead one did, and makes all of its steps again."""
    parts = second_collector(two_collectors())
    sent: list[Progress] = []
    parts.writer.take_over = lambda announced: handed_over
    parts.episodes = SimpleNamespace(take_over=lambda first: None)
    parts.policy = SimpleNamespace(reseed=lambda *path: None)
    parts._send_hello = sent.append
    parts._job.host = SimpleNamespace(num_hosts=1)
    progress = parts.take_over(CollectorTotals(None, 15, 5, 7.0, 3))
    assert (progress.vector_steps, progress.policy_steps, progress.policy_lag_sum) == counted
    assert progress.env_steps == handed_over


@pytest.mark.parametrize("start_step", [0, 40])
def test_a_resumed_collector_reports_what_it_restored_before_another_one_may_take_over(start_step: int) -> None:
    control = two_collectors()
    words = control.collectors[1]
    parts, reported = second_collector(control, bad_rows=(0, 3)), list[CollectorTotals]()
    parts._job.start_step = start_step
    parts.writer.begin = parts._send_hello = lambda *_: None

    def restore(progress: Progress) -> None:
        progress.env_steps, progress.vector_steps, progress.policy_steps, progress.policy_lag_sum = 40, 20, 15, 7.0

    def publish(totals: CollectorTotals) -> None:
        assert not words.get(CollectorWord.HAS_BEGUN)
        reported.append(totals)

    parts._resume = restore
    parts.start(SimpleNamespace(publish=publish))
    counters = [(one.env_steps, one.vector_steps, one.policy_steps, one.policy_lag_sum) for one in reported]
    assert counters == ([(40, 20, 15, 7.0)] if start_step else [])
    assert words.get(CollectorWord.HAS_BEGUN)
    assert words.get(CollectorWord.BAD_ROWS) == 3

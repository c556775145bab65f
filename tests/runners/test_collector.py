"""What a collector is told of a schedule, what it does about bad rows, and what it reports when it is resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.checkpoint import CheckpointStore
from offpolicy.collect.collector import Progress
from offpolicy.collect.replay_writer import BadRow, BadRowError
from offpolicy.config.schedules import Ramp
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import AlgoConfig
from offpolicy.errors import CheckpointError, NumericsError
from offpolicy.processes.control_page import CollectorWord, ControlPage
from offpolicy.types import CollectorTotals, StepOutcome
from runners.collector import Collector, CountsBefore, counts_before, exploration_of, noise_schedule


def test_a_collector_dates_its_noise_by_the_steps_of_all() -> None:
    algo = AlgoConfig(name="td3", learning_starts=60, exploration_noise=Ramp(start=0.5, end=0.0, over=100))
    noise = noise_schedule(algo, num_collectors=3)
    assert noise is not None
    assert [noise(own_steps) for own_steps in (0, 20, 30, 60)] == [0.5, 0.5, 0.35, 0.0]


def test_a_noise_that_is_a_number_is_looked_up_by_nobody() -> None:
    assert noise_schedule(AlgoConfig(name="td3"), num_collectors=1) is None


def test_collectors_share_the_random_steps_and_hold_noise_as_long_as_the_algorithm_says() -> None:
    of_two = exploration_of(AlgoConfig(name="flashsac", learning_starts=60, noise_repeat=16), num_collectors=2)
    assert (of_two.warmup_steps, of_two.noise_repeat, of_two.noise_at) == (30, 16, None)
    of_one = exploration_of(AlgoConfig(name="appo"), num_collectors=1)
    assert (of_one.warmup_steps, of_one.noise_repeat) == (0, 1)


class FakeChild:
    index = 1

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, kind: str, text: str) -> None:
        self.sent.append(text)


def two_collectors() -> ControlPage:
    return ControlPage(memoryview(bytearray(ControlPage.nbytes(1, 2))), 1, 2)


def collector_at(tmp_path: Path, control: ControlPage, limit: int = 10, bad_rows: tuple[int, int] = (0, 0)) -> Any:
    """A collector, number 1 of the run, of which only what concerns bad rows is there; `bad_rows` of the checkpoint."""
    parts = Collector.__new__(Collector)
    cfg = RunConfig.from_mapping({"env": {"max_bad_rows": limit}})
    env = SimpleNamespace(num_envs=3, can_reset_some=True, reset_some=lambda seed, *_: np.zeros((3, 2)))
    tracker = SimpleNamespace(ep_return=np.zeros(3), ep_length=np.array([4, 5, 6]))
    fakes: dict[str, Any] = {
        "_child": FakeChild(), "_job": SimpleNamespace(cfg=cfg, run_dir=str(tmp_path)), "number": 1,
        "control": control, "_words": control.collectors[1], "before": CountsBefore([0, 0], list(bad_rows)),
        "env": env, "tracker": tracker, "writer": SimpleNamespace(abandon=lambda envs: None),
    }  # fmt: skip
    for name, value in fakes.items():
        setattr(parts, name, value)
    return parts


NUMBERS, FLAGS = np.zeros(3, np.float32), np.zeros(3, np.bool_)
OUTCOME = StepOutcome(np.ones((3, 2), np.float32), NUMBERS, FLAGS, FLAGS, FLAGS, NUMBERS, NUMBERS)
TWO_BAD = BadRowError([BadRow(0, {"reward": [float("nan")]}), BadRow(2, {"obs": [float("inf")]})])


def test_every_bad_row_of_a_step_has_its_file_and_the_count_outlives_the_process(tmp_path: Path) -> None:
    control = two_collectors()
    words = control.collectors[1]
    for _ in range(2):  # the second one takes over, at the same env step
        parts = collector_at(tmp_path, control)
        outcome = parts.skip_bad_row(TWO_BAD, OUTCOME, Progress(np.zeros((3, 2), np.float32), env_steps=40))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"bad-row-40-{number}-collector-1-env-{env}.json" for number, env in ((1, 0), (2, 2), (3, 0), (4, 2))
    ]
    assert words.get(CollectorWord.BAD_ROWS) == 4
    assert [text.rpartition(", ")[2] for text in parts._child.sent] == [f"{n} of env.max_bad_rows=10" for n in (3, 4)]
    assert outcome.next_obs.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]


def test_a_disk_that_refuses_a_bad_row_costs_its_file_only(tmp_path: Path) -> None:
    control = two_collectors()
    parts = collector_at(tmp_path / "missing", control)
    parts.skip_bad_row(TWO_BAD, OUTCOME, Progress(np.zeros((3, 2), np.float32)))
    assert ["cannot be written: No such file or directory; skipped" in text for text in parts._child.sent] == [True] * 2


def test_one_bad_row_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    control = two_collectors()
    with pytest.raises(NumericsError, match="NaN or Inf in reward of environment 0 at env step 0, episode step 4"):
        collector_at(tmp_path, control, limit=1).skip_bad_row(TWO_BAD, OUTCOME, Progress(np.zeros((3, 2), np.float32)))


def test_bad_rows_are_counted_over_all_collectors_and_those_before_the_resume(tmp_path: Path) -> None:
    """The other collector still starts and has announced none: it had two in the checkpoint."""
    control, progress = two_collectors(), Progress(np.zeros((3, 2), np.float32))
    control.collectors[1].set(CollectorWord.BAD_ROWS, 3)
    parts = collector_at(tmp_path, control, limit=7, bad_rows=(2, 3))
    parts.skip_bad_row(TWO_BAD, OUTCOME, progress)
    assert [text.rpartition(", ")[2] for text in parts._child.sent] == [f"{n} of env.max_bad_rows=7" for n in (6, 7)]
    control.collectors[0].set(CollectorWord.BAD_ROWS, 3)
    parts = collector_at(tmp_path, control, limit=9, bad_rows=(2, 3))
    with pytest.raises(NumericsError):
        parts.skip_bad_row(TWO_BAD, OUTCOME, progress)


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
    tmp_path: Path, handed_over: int, counted: tuple[int, int, float]
) -> None:
    """Where nothing was handed over it begins as the dead one did, and makes all of its steps again."""
    parts: Any = collector_at(tmp_path, two_collectors())
    sent: list[Progress] = []
    parts.env.reset = lambda seed: np.zeros((3, 2), np.float32)
    parts.writer.take_over = lambda announced: handed_over
    parts.episodes = SimpleNamespace(take_over=lambda first: None)
    parts.policy = SimpleNamespace(reseed=lambda *path: None)
    parts._send_hello = sent.append
    parts._job.host = SimpleNamespace(num_hosts=1)
    progress = parts.take_over(CollectorTotals(None, 15, 5, 7.0, 3))
    assert (progress.vector_steps, progress.policy_steps, progress.policy_lag_sum) == counted
    assert progress.env_steps == handed_over


@pytest.mark.parametrize("start_step", [0, 40])
def test_a_resumed_collector_reports_what_it_restored_before_another_one_may_take_over(
    tmp_path: Path, start_step: int
) -> None:
    control = two_collectors()
    words = control.collectors[1]
    parts, reported = collector_at(tmp_path, control, bad_rows=(0, 3)), list[CollectorTotals]()
    parts._job.start_step, parts.env.reset = start_step, lambda seed: np.zeros((3, 2), np.float32)
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

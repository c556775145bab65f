"""An evaluation with a hook: its log, the data it keeps, and the failures that do not end the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpolicy.collect import policy_evaluation
from offpolicy.collect.episode_hook import HookResult, Interval
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.collect.policy_evaluation import EPISODES_FILE, EvaluationContext, PolicyEvaluation
from offpolicy.collect.post import Episode
from offpolicy.config.schema import RunConfig
from offpolicy.timing.clock import MonotonicClock
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(4, 2, (-1.0,) * 2, (1.0,) * 2)
POINT_MASS = {"id": "offpolicy.envs.toy:PointMass-v0"}


class Answering:
    """A queue whose hook takes no time, and fails for the episodes `errors`."""

    def __init__(self, errors: dict[int, str], on_done: Callable[[HookResult], None]) -> None:
        self.errors, self._on_done = errors, on_done

    def submit(self, episode: Episode) -> None:
        now_ns, error = MonotonicClock.now_ns(), self.errors.get(episode.index)
        self._on_done(HookResult(episode.index, None if error else Interval(now_ns, now_ns + 1), error))

    def open(self) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def make_evaluation(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`make_evaluation(start_step=0, errors={})`"""

    def make(start_step: int = 0, errors: dict[int, str] | None = None, hook: str | None = "a:b") -> PolicyEvaluation:
        monkeypatch.setattr(
            policy_evaluation, "EpisodeHook", lambda cfg, stop, on_done: Answering(errors or {}, on_done)
        )
        cfg = RunConfig.from_mapping({"env": POINT_MASS, "eval": {"episodes": 3, "hook": hook}})
        context = EvaluationContext(lambda: False, warnings.append)
        return PolicyEvaluation(cfg, SPEC, tmp_path, start_step, context)

    return make


def evaluate(made: PolicyEvaluation, env_steps: int) -> Any:
    return made.evaluate(np.zeros(made.policy_size, np.float32), env_steps, 1)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_full_disk_costs_the_episode_log_and_not_the_evaluation(
    make_evaluation: Any, tmp_path: Path, warnings: list[str]
) -> None:
    (tmp_path / EPISODES_FILE).symlink_to("/dev/full")
    made = make_evaluation()
    assert [evaluate(made, steps).episodes for steps in (100, 200)] == [3, 3]
    made.close()
    (warning,) = warnings
    assert warning.startswith("eval_episodes.jsonl cannot be written: ")
    assert "No space left on device" in warning


def test_a_resumed_run_mends_the_episode_log_and_supersedes_what_it_repeats(
    make_evaluation: Any, tmp_path: Path
) -> None:
    path = tmp_path / EPISODES_FILE
    path.write_text('{"env_steps": 100}\n{"env_steps": 200}\n{"env_st')
    made = make_evaluation(start_step=150)
    evaluate(made, 200)
    made.close()
    assert [each["env_steps"] for each in lines_of(path)] == [100, 200, 200, 200]
    assert lines_of(path)[0] == {"env_steps": 100}
    assert lines_of(tmp_path / "eval_episodes.superseded.jsonl") == [{"env_steps": 200}]


def test_an_evaluation_counts_its_own_failures_of_the_hook(make_evaluation: Any, warnings: list[str]) -> None:
    made = make_evaluation(errors={0: "Traceback\nValueError: 0", 2: "ValueError: 2"})
    assert [evaluate(made, steps).post_failures for steps in (100, 200)] == [2, 2]
    assert made.post_failures == 4
    assert len(warnings) == 1
    assert "at env step 100: ValueError: 0; its return counts" in warnings[0]
    made.close()


def test_without_a_hook_its_counts_are_absent(make_evaluation: Any, tmp_path: Path) -> None:
    made = make_evaluation(hook=None)
    result = evaluate(made, 100)
    assert (result.overlap, result.post_failures) == (None, None)
    made.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 2])
def test_nan_in_an_evaluation_ends_a_run_only_where_no_bad_transition_is_skipped(
    limit: int, tmp_path: Path, warnings: list[str]
) -> None:
    faulty = {"id": "offpolicy.envs.toy:Faulty-v0", "kwargs": {"fail": "nan_obs", "at": 3}, "max_bad_rows": limit}
    cfg = RunConfig.from_mapping({"env": faulty, "eval": {"episodes": 2}})
    made = PolicyEvaluation(
        cfg, SpaceSpec(2, 1, (-1.0,), (1.0,)), tmp_path, 0, EvaluationContext(lambda: False, warnings.append)
    )
    if limit == 0:
        with pytest.raises(BadEpisodeError):
            evaluate(made, 100)
        return
    result = evaluate(made, 100)
    assert np.isnan(result.mean_reward)
    assert (result.env_steps, result.episodes, made.episodes) == (100, 0, 0)
    (warning,) = warnings
    assert "episode 0 of the evaluation, after 3 steps; env.max_bad_rows=2 lets the run go on" in warning

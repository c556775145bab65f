"""`--fail-on`: its grammar, and that only sure evidence fails and only known evidence passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offpolicy.analysis.conditions import Answer, check_conditions, parse_conditions
from offpolicy.analysis.runs import LabelledRuns, read_runs
from offpolicy.errors import ConfigError

MakeRun = Callable[..., Path]
BUSY = {"cpu/learner_descheduled_pct": 40.0}


def read(*words: str | Path) -> list[LabelledRuns]:
    return read_runs([str(word) for word in words])


def outcomes(text: str, compared: list[LabelledRuns]) -> list[Answer]:
    return [each.answer for each in check_conditions(parse_conditions([text]), compared)]


def test_a_condition_is_a_key_a_side_and_a_change() -> None:
    texts = ["perf/steps_per_sec<-5%", " timing/learner_train_ms > +3.5 % ", "eval/mean_reward<-10"]
    assert [(each.key, each.is_below, each.bound, each.is_relative) for each in parse_conditions(texts)] == [
        ("perf/steps_per_sec", True, -0.05, True),
        ("timing/learner_train_ms", False, 0.035, True),
        ("eval/mean_reward", True, -10.0, False),
    ]


def test_another_text_is_refused_with_what_is_allowed() -> None:
    allowed = {
        "perf/steps_per_sec": "KEY<CHANGE or KEY>CHANGE",
        "perf/steps_per_sec<=-5%": "KEY<CHANGE or KEY>CHANGE",
        "perf/stepps<-5%": "a key of a record before < or >",
        "perf/bottleneck<-5%": "a phase, a rate or one of eval/mean_reward, rollout/ep_rew_mean",
        "train/n_updates<-5": "a phase, a rate or one of",
        "eval/mean_reward<-5%": "a change without %, such as eval/mean_reward<-5: the zero of returns is arbitrary",
    }
    with pytest.raises(ConfigError) as raised:
        parse_conditions(["perf/utd>1%", *allowed])
    for problem, (text, instead) in zip(raised.value.problems, allowed.items(), strict=True):
        assert problem.startswith(f"--fail-on: got {text!r}, allowed {instead}")


def test_a_change_fails_only_if_its_whole_interval_is_beyond_the_bound(make_run: MakeRun) -> None:
    compared = read(make_run("one"), make_run("two", train=13.0))  # thru 1000/12 and 1000/15: -20 %
    assert outcomes("perf/steps_per_sec<-5%", [*compared, compared[0]]) == [Answer.FAILED, Answer.PASSED]
    assert outcomes("perf/steps_per_sec<-30%", compared) == [Answer.PASSED]
    assert outcomes("timing/learner_train_ms>25%", compared) == [Answer.FAILED]
    (result,) = check_conditions(parse_conditions(["perf/steps_per_sec<-5%"]), compared)
    line = r"failed: perf/steps_per_sec<-5%: two 66\.\d+ against one 83\.\d+, -(19|20)\.\d% \[-2\d\.\d%, -1\d\.\d%\]"
    assert re.fullmatch(line, result.line)


def test_a_time_of_a_run_without_its_cores_is_not_judged(make_run: MakeRun) -> None:
    one, two = make_run("one"), make_run("two", train=13.0, extra=BUSY)
    for runs in ((one, two), (two, one)):
        (result,) = check_conditions(parse_conditions(["perf/steps_per_sec<-5%"]), read(*runs))
        reason = "more than 10% of the wall without a core: two (learner 40.0 %)"
        assert (result.answer, result.reason) == (Answer.REFUSED, reason)


def test_a_return_is_judged_though_the_cores_were_shared(make_run: MakeRun) -> None:
    words = [
        f"{label}={make_run(f'{label}{n}', returns=np.full(40, level + n), changes={'seed': n}, extra=BUSY)}"
        for label, level in (("high", 0.0), ("low", -50.0))
        for n in range(3)
    ]
    assert outcomes("rollout/ep_rew_mean<-10", read(*words)) == [Answer.FAILED]
    assert outcomes("rollout/ep_rew_mean<-100", read(*words)) == [Answer.PASSED]


def test_what_was_not_recorded_or_has_no_interval_is_not_passed(make_run: MakeRun) -> None:
    compared = read(make_run("one"), make_run("two", returns=np.zeros(40)))
    assert outcomes("perf/samples_per_sec<-5%", compared) == [Answer.REFUSED]
    assert outcomes("rollout/ep_rew_mean<-5", compared) == [Answer.REFUSED]

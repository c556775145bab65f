"""docs/hora.md: the words of benchmarks/learning/hora.md around what the hands' studies have given.

`make learning-page` writes it; `{{name}}` stands for what is made here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.learning.hand_gaits import TASKS
from benchmarks.learning.results import Raw, inference, policies_of, runs_of
from benchmarks.learning.runs import FINISHED
from benchmarks.learning.studies import BY_KEY
from benchmarks.page import WIDTH, filled, table
from benchmarks.results import REPOSITORY
from offpolicy.analysis.bootstrap import Interval, Values, difference_interval, draw
from offpolicy.types import Float64

TEXT, PAGE = Path(__file__).with_name("hora.md"), REPOSITORY / "docs" / "hora.md"
NO_RUN = "*Not run yet.*"
TEACHER, STUDENT = "teacher", "student"
POLICIES = {
    "baseline, observes the joints": "hora-blind",
    "baseline, observes the history": "hora-history",
    TEACHER: "hora-teacher",
    STUDENT: "hora-student",
}
SCRIPTED = {
    "best blind gait, by rotation": "gait, rotation",
    "best blind gait, by return": "gait, return",
    "random actions": "random",
    "fingers that do not move": "constant",
}
MEASURES = {"rotation": "net_rotation", "return": "mean"}
BARS = {"teacher": 1.5, "student": 0.85}  # of the best gait's, of the teacher's


class Policy(NamedTuple):
    """A policy of each seed, in the held-out episodes."""

    rotation: Float64  # [seeds] rad
    ep_return: Float64  # [seeds]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, runs: Mapping[int, Raw]) -> Policy:
        """Returns the finished ones."""
        finals = {seed: run["final"] for seed, run in runs.items() if run["status"] == FINISHED}
        rotation, ep_return = (np.array([final[key] for final in finals.values()]) for key in MEASURES.values())
        return cls(rotation, ep_return, tuple(finals))

    def with_seeds(self, seeds: Collection[int]) -> Policy:
        """Returns those of these seeds alone."""
        chosen = [at for at, seed in enumerate(self.seeds) if seed in seeds]
        return Policy(self.rotation[chosen], self.ep_return[chosen], tuple(self.seeds[at] for at in chosen))


def learnt() -> dict[str, Policy]:
    """The trained policies that have finished runs, by their name in the table."""
    found = {name: Policy.of(runs_of(BY_KEY[key])) for name, key in POLICIES.items()}
    return {name: policy for name, policy in found.items() if policy.seeds}


def results_table(policies: Mapping[str, Policy], scripted: Mapping[str, Raw]) -> str:
    """Rotation and return of all policies, and the rotation of each seed."""
    lines = [
        [name, f"{scripted[key]['net_rotation']:.1f}", f"{scripted[key]['mean']:.0f}", ""]
        for name, key in SCRIPTED.items()
        if key in scripted
    ]
    for name, one in policies.items():
        each = ", ".join(f"{value:.1f}" for value in one.rotation)
        lines.append([name, _spread(one.rotation, 1), _spread(one.ep_return, 0), each])
    headings = ("", "net rotation, rad in 20 s", "return", "rotation of each seed")
    return table(headings, lines) if lines else NO_RUN


def conclusions(policies: Mapping[str, Policy], scripted: Mapping[str, Raw]) -> str:
    """What the numbers say of the bars, a sentence each."""
    lines = (textwrap.fill(f"- {line}", WIDTH, subsequent_indent="  ") for line in _conclusions(policies, scripted))
    return "\n".join(lines) or NO_RUN


def _conclusions(policies: Mapping[str, Policy], scripted: Mapping[str, Raw]) -> Iterator[str]:
    if TEACHER not in policies:
        return
    gaits = [scripted[key] for name, key in SCRIPTED.items() if "gait" in name and key in scripted]
    teacher = policies[TEACHER]
    for (name, key), own in zip(MEASURES.items(), (teacher.rotation, teacher.ep_return), strict=True):
        if gaits:
            yield _against_gaits(name, float(own.mean()), max(gait[key] for gait in gaits))
    if STUDENT in policies:
        student = policies[STUDENT]
        taught = student.with_seeds(teacher.seeds)
        if taught.seeds:
            kept = float(taught.rotation.mean() / teacher.with_seeds(taught.seeds).rotation.mean())
            verdict = "reached" if kept >= BARS["student"] else "**missed**"
            yield f"The student keeps {kept:.1%} of the teacher's rotation (bar {BARS['student']:.0%}, {verdict})."
        for name, baseline in policies.items():
            if name.startswith("baseline"):
                yield _against_baseline(name, student, baseline)


def _against_gaits(name: str, own: float, best: float) -> str:
    bar = BARS["teacher"]
    verdict = "reached" if own >= bar * best and own > 0.0 else "**missed**"
    if best <= 0.0:
        return f"In {name} the teacher has {own:.1f}, the best gait {best:.1f} (bar {bar} times, {verdict})."
    return f"In {name} the teacher has {own / best:.1f} times what the best gait has (bar {bar}, {verdict})."


def _against_baseline(name: str, student: Policy, baseline: Policy) -> str:
    more = over_seeds(student.rotation, baseline.rotation)
    text = f"The student turns the object by {more.value:.1f} rad more than the {name}"
    if not np.isfinite(more.low):
        return f"{text} (one seed: no interval, so the bar is open)."
    verdict = "reached" if more.low > 0.0 else "**missed**"
    return f"{text} (95 % over seeds: {more.low:.1f} to {more.high:.1f}; bar: all above 0, {verdict})."


def over_seeds(values: Float64, others: Float64) -> Interval:
    """The difference of two means over seeds; its bounds are NaN with one seed of either."""
    if min(len(values), len(others)) < 2:
        return Interval(float(values.mean() - others.mean()), float("nan"), float("nan"))
    drawn = [
        draw([Values(np.array([value]), np.ones(1)) for value in each], seed)
        for seed, each in enumerate((values, others))
    ]
    return difference_interval(drawn[0], drawn[1])


def inference_table(found: Raw) -> str:
    """Returns the explained variance of each quantity, a column for each number of frames."""
    if not found:
        return NO_RUN
    rows = [[what, *(f"{value:.2f}" for value in each.values())] for what, each in found["explained"].items()]
    names = next(iter(found["explained"].values()))
    return table(("", *names), rows)


def provenance() -> str:
    """The machines and commits of the runs, and how long they took."""
    runs = {
        key: [run for run in runs_of(BY_KEY[key]).values() if run["status"] == FINISHED] for key in POLICIES.values()
    }
    lines = []
    for key, found in runs.items():
        if found:
            minutes = sorted(run["wall_s"] / 60.0 for run in found)
            where = sorted({f"{call['commit']}, {call['hardware']['cpu']}" for run in found for call in run["calls"]})
            ends = " to ".join(dict.fromkeys(f"{each:.0f}" for each in (minutes[0], minutes[-1])))
            text = f"- `{key}`: {ends} minutes; {'; '.join(where)}"
            lines.append(textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join(lines) or NO_RUN


def _spread(values: Float64, digits: int) -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f} (one seed)"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def render() -> str:
    """The page."""
    policies, scripted = learnt(), policies_of(TASKS["rotation"])
    made = {
        "results": results_table(policies, scripted),
        "conclusions": conclusions(policies, scripted),
        "inference": inference_table(inference()),
        "provenance": provenance(),
    }
    return filled(TEXT.read_text(), made)

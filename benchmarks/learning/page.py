"""`make learning-page`: docs/learning.md with its pictures and docs/hora.md, from benchmarks/results/learning.

The words around the tables are in benchmarks/learning/page.md, where `{{name}}` stands for what is made here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.learning import hora_page
from benchmarks.learning.results import Raw, policies_of, runs_of
from benchmarks.learning.runs import FINISHED
from benchmarks.learning.studies import STUDIES, Study, steps_text
from benchmarks.page import WIDTH, filled, table
from benchmarks.results import REPOSITORY, processor
from offpolicy.analysis.bootstrap import interquartile_mean_interval
from offpolicy.analysis.plots import curves_file
from offpolicy.types import Float64

TEXT = Path(__file__).with_name("page.md")
PAGE, PICTURES = REPOSITORY / "docs" / "learning.md", REPOSITORY / "docs" / "img"
HEADINGS = ("", "env steps", "seeds", "mean ± std", "IQM [95 %]", "bar", "random", "constant", "minutes")
NO_RUN = "*Not run yet.*"
Curves = list[tuple[Float64, Float64]]  # env steps and returns of each run


class Judged(NamedTuple):
    """A study and its runs by seed."""

    study: Study
    runs: Mapping[int, Raw]

    @property
    def finished(self) -> dict[int, Raw]:
        """Those that have all of their env steps."""
        return {seed: run for seed, run in self.runs.items() if run["status"] == FINISHED}

    @property
    def returns(self) -> Float64:
        """The final returns, seed by seed."""
        return np.array([run["final"]["mean"] for run in self.finished.values()])

    @property
    def curves(self) -> Curves:
        """Env steps and evaluation returns of each run with two evaluations or more."""
        found = [np.array(run["evaluations"]) for run in self.runs.values() if len(run.get("evaluations", [])) > 1]
        return [(curve[:, 0], curve[:, 1]) for curve in found]

    @property
    def env_id(self) -> str:
        """Gymnasium's name of the environment, without the module that registers it."""
        return self.study.resolved().env.id.rpartition(":")[2]


def judged(studies: Sequence[Study] = STUDIES) -> list[Judged]:
    """All studies, in their order, with what has been run of them."""
    return [Judged(study, runs_of(study)) for study in studies]


def row(one: Judged) -> list[str]:
    """The line of a study that has finished runs."""
    study, returns = one.study, one.returns
    policies = {name: f"{found['mean']:,.0f}" for name, found in policies_of(study.resolved().env.id).items()}
    minutes = sorted(run["wall_s"] / 60.0 for run in one.finished.values())
    spread = f"{returns.mean():,.1f} ± {returns.std(ddof=1):,.1f}" if len(returns) > 1 else f"{returns[0]:,.1f}"
    count = f"{len(returns)} of {study.seeds}" if len(returns) < study.seeds else str(study.seeds)
    return [
        f"`{study.key}`",
        steps_text(study.env_steps),
        "one seed" if len(returns) == 1 else count,
        spread,
        _interval(returns),
        "" if study.bar is None else f"{study.bar:,.0f}, {'reached' if returns.mean() >= study.bar else '**missed**'}",
        policies.get("random", ""),
        policies.get("constant", ""),
        " to ".join(dict.fromkeys(f"{end:.0f}" for end in (minutes[0], minutes[-1]))),
    ]


def results_table(found: Sequence[Judged]) -> str:
    """The returns of all studies with a finished run."""
    lines = [row(one) for one in found if one.finished]
    return table(HEADINGS, lines) if lines else NO_RUN


def details(found: Sequence[Judged]) -> str:
    """Of each study that has been run: its command, the return of each seed, and what others published."""
    return "\n".join(_detail(one) for one in found if one.runs) or NO_RUN


def _detail(one: Judged) -> str:
    returns = ", ".join(f"{run['final']['mean']:,.1f}" for run in one.finished.values())
    lines = [_named(one.study)]
    if returns:
        seeds = ", ".join(str(seed) for seed in one.finished)
        lines.append(f"  - return of {'seeds' if len(one.finished) > 1 else 'seed'} {seeds}: {returns}")
    for seed, run in one.runs.items():
        if seed not in one.finished:
            steps = run["evaluations"][-1][0] if run.get("evaluations") else 0
            text = run.get("reason", f"{steps:,.0f} of {one.study.env_steps:,} env steps")
            lines.append(f"  - seed {seed}: {run['status']}, {text}")
    lines += [f"  - published: {published.text}" for published in one.study.published]
    commits = sorted({call["commit"] for run in one.runs.values() for call in run["calls"]})
    machines = sorted({processor(call["hardware"]) for run in one.runs.values() for call in run["calls"]})
    origin = f"commit {', '.join(commits)}; {', '.join(machines)}"
    lines.append(textwrap.fill(origin, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(lines)


def _named(study: Study) -> str:
    indent = dict.fromkeys(("initial_indent", "subsequent_indent"), "  ")
    command = textwrap.fill(f"`{study.command}`", WIDTH, **indent, break_long_words=False, break_on_hyphens=False)
    return f"- `{study.key}`:\n{command}"


def missing(found: Sequence[Judged]) -> str:
    """The studies without a finished run."""
    return "\n".join(_named(one.study) for one in found if not one.finished) or "None."


def by_env(found: Sequence[Judged]) -> dict[str, dict[str, Curves]]:
    """The curves of the studies of each environment."""
    curves: dict[str, dict[str, Curves]] = {}
    for one in found:
        if own := one.curves:
            curves.setdefault(one.env_id, {})[one.study.key] = own
    return curves


def picture_name(env_id: str) -> str:
    """The file of an environment's curves."""
    return f"learning-{env_id.lower()}.svg"


def pictures(found: Sequence[Judged]) -> dict[str, bytes]:
    """One file for each environment: the mean over the seeds of each study, with a band from the least to the most."""
    return {
        picture_name(env_id): curves_file(curves, f"{env_id}: evaluation return", is_svg=True)
        for env_id, curves in by_env(found).items()
    }


def render(found: Sequence[Judged]) -> str:
    """The page."""
    shown = [f"![Learning curves of {env_id}](img/{picture_name(env_id)})" for env_id in by_env(found)]
    return filled(
        TEXT.read_text(),
        {
            "results": results_table(found),
            "curves": "\n\n".join(shown),
            "details": details(found),
            "missing": missing(found),
        },
    )


def main() -> None:
    found = judged()
    PAGE.write_text(render(found))
    made = pictures(found)
    for path in PICTURES.glob(picture_name("*")):
        if path.name not in made:  # of a study that is gone
            path.unlink()
    for name, content in made.items():
        (PICTURES / name).write_bytes(content)
    hora_page.PAGE.write_text(hora_page.render())
    print(f"written: {', '.join(str(each.relative_to(REPOSITORY)) for each in (PAGE, hora_page.PAGE))}")


def _interval(returns: Float64) -> str:
    if len(returns) < 2:
        return ""
    value, low, high = interquartile_mean_interval(returns)
    return f"{value:,.1f} [{low:,.1f}, {high:,.1f}]"


if __name__ == "__main__":
    main()

"""The options of a run that TensorBoard's table of hyper-parameters lists: those that the run uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from offpolicy.config.parsing import flatten, is_within
from offpolicy.config.schema import RunConfig
from offpolicy.config.unread import unread_keys
from offpolicy.errors import ConfigError

# As many as TensorBoard shows before the results.
FIRST = ("algo.name", "env.id", "runner.name", "seed", "total_timesteps")
# Options that change neither what a run learns nor how fast.
LEFT_OUT = ("run_dir", "resume", "log", "checkpoint", "timing", "env.measure")


class FinalMetric(NamedTuple):
    """A scalar that is written at the end of a run, for the table, and its name there.

    It has a key of its own: as a point more of a curve, a value of the whole run would stand among those of windows.
    """

    key: str
    name: str


FINAL_METRICS = (
    FinalMetric("final/mean_reward", "final return"),
    FinalMetric("final/elapsed_s", "time to it, s"),
    FinalMetric("final/steps_per_sec", "env steps/s"),
    FinalMetric("final/learner_train_pct", "train, % of the wall"),
)


def used_options(config: Mapping[str, Any]) -> dict[str, Any]:  # Any: values of the configuration
    """Returns the options by dotted key, `FIRST` first; without those that nothing reads and those that are null."""
    options = {key: value for key, value in flatten(config).items() if value is not None}
    try:
        unread = tuple(unread_keys(RunConfig.from_mapping(config)))
    except ConfigError:  # of another trainer
        unread = ()
    used = {key: value for key, value in options.items() if not is_within(key, (*LEFT_OUT, *unread))}
    return {key: used[key] for key in FIRST if key in used} | used


def final_values(summary: Mapping[str, Any]) -> dict[str, float]:  # Any: the nested mapping of summary.json
    """Returns the values of `FINAL_METRICS` over the whole run, as far as they are known."""
    learner = summary["timing"]["learner"]
    found = {
        "final/mean_reward": summary["eval"]["mean_reward"],
        "final/elapsed_s": summary["wall_s"],
        "final/steps_per_sec": summary["rates"]["steps_per_sec"],
        "final/learner_train_pct": _share(learner, "train") if learner is not None else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _share(account: Mapping[str, Any], phase: str) -> float | None:
    """Returns a phase in percent of the time after the warm-up."""
    after_s = account["wall_s"] - account["phases_s"].get("warmup", 0.0)
    return 100.0 * account["phases_s"][phase] / after_s if after_s > 0 else None

"""Aliases of metrics: the names of `metrics.toml` for keys of older records and of other trainers.

A key may have meant something else in one generation than in the next (UniLab's `perf/iter_ms` left the wait out at
first), so aliases belong to a vocabulary, and a run is read through the first vocabulary whose marks it holds. Where
an old key is not quite what its name of today says, the alias says how it differs. Sources: Motphys/UniLab #633, #636,
#639, #642, #948, #961; unilabsim/unilab_rl docs/metrics.md; the writers of Stable-Baselines3, CleanRL and RSL-RL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from offpolicy.logger.metrics import ROLLOUT_KEY
from offpolicy.logger.metrics import collector_key as _collector
from offpolicy.logger.metrics import learner_key as _learner

MS_PER_S = 1000.0
MIXED_WAIT_KEY = "timing/learner_wait_ms"
INFERENCE_KEY = "timing/learner_inference_ms"
REQUEST_KEY = "timing/collector_inference_request_ms"
PIPELINE_KEY = "perf/learner_pipeline_ms"

# Sums of our phases that others recorded as one number, compared with the same sum of ours, never with a part of it.
COMPOSITES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    MIXED_WAIT_KEY: (
        "Waits, mixed",
        tuple(map(_learner, ("collector_wait", "replay_batch_wait", "rank_barrier", "sync_coordination"))),
    ),
    PIPELINE_KEY: (
        "Pipeline (no waits)",
        tuple(map(_learner, ("h2d", "train", "param_sync", "weight_publish"))),
    ),
}
# Exclusive phases of others without a counterpart here: the side whose account they belong to, and their row.
FOREIGN: Mapping[str, tuple[str, str]] = {
    INFERENCE_KEY: ("learner", "Inference"),
    REQUEST_KEY: ("collector", "Inference Request"),
}


class Alias(NamedTuple):
    """Today's name of a key. `note` says where it is not quite that; values are multiplied by `scale`."""

    key: str
    note: str = ""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The keys of one trainer in one generation. `marks`: sets of keys, each of which identifies it."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    aliases: Mapping[str, Alias]
    axis_is_env_steps: bool = True  # else iterations: its curves cannot be laid over others

    def notes(self, keys: Iterable[str]) -> list[str]:
        """Returns how keys that a run holds, and that are read, differ from what their name of today says."""
        held, taken, found = frozenset(keys), set[str](), list[str]()
        for key, alias in self.aliases.items():
            if key in held and alias.key not in taken:
                taken.add(alias.key)
                name = key if key == alias.key else f"{key} as {alias.key}"
                found += [f"{name}: {alias.note}"] if alias.note else []
        return found


def vocabulary_of(keys: Iterable[str]) -> Vocabulary:
    """Returns the first vocabulary with a mark that `keys` hold whole; ours where there is none."""
    held = frozenset(keys)
    return next((one for one in VOCABULARIES if any(held.issuperset(mark) for mark in one.marks)), OURS)


def _same(*keys: str, note: str) -> dict[str, Alias]:
    return {key: Alias(key, note) for key in keys}


SUBMITTED = "SAC, TD3: time of the submit, beside training; APPO: the staging of rollouts, a phase"
LAUNCHED = "no device sync before its end: on a GPU some of it is in the weight publish"
CUT_WALL = "ends before logging and checkpoints"
RESIDUAL = "clamped at 0, so double counting cannot be seen"
IDLE = "handshake, idleness, bookkeeping and metrics in one"
MEAN_OF_MEANS = "a mean of up to 100 means of 100 episodes, 0 before the first"
SINCE_START = "the mean since the start of the run, not of the window"
ONE_EPISODE = "single episodes, not the mean of the last 100"
H2D, TRAIN = _learner("h2d"), _learner("train")
PUBLISH, RELEASE = _learner("weight_publish"), _learner("sync_coordination")
INFER, WRITE = _collector("action_select"), _collector("replay_write")
LEARNER_WAIT = _collector("learner_wait")

_OURS = {"time/total_timesteps": Alias("env_steps")}
_EPISODES = {
    "reward/mean_ep100": Alias("rollout/ep_rew_mean"),
    "reward/mean": Alias("rollout/ep_rew_mean", MEAN_OF_MEANS),
    "episode/length": Alias("rollout/ep_len_mean"),
    "train/qf_loss": Alias("train/critic_loss"),
    "train/alpha": Alias("train/ent_coef"),
    "train/policy_entropy": Alias("train/entropy"),
}
_FIRST = {
    "axis/iteration": Alias("iteration"),
    "axis/env_steps_total": Alias("env_steps"),
    MIXED_WAIT_KEY: Alias(
        MIXED_WAIT_KEY,
        "collector wait, batch wait, rank barrier, handshake and refreshing the log in one; held against the same sum",
    ),
    "timing/learner_incremental_h2d_ms": Alias(H2D, SUBMITTED),
    "timing/learner_weight_sync_ms": Alias(PUBLISH),
    "timing/collector_weight_sync_ms": Alias(_collector("weight_apply")),
    "timing/collector_replay_ms": Alias(WRITE),
    "timing/collector_env_step_total_ms": Alias(_collector("env_step")),
    "timing/collector_mlp_infer_ms": Alias(INFER),
    "timing/collector_sync_coordination_ms": Alias(LEARNER_WAIT, IDLE),
    "perf/collector_active_steps_per_sec": Alias("perf/collector_capacity"),
    **_same(TRAIN, note=LAUNCHED),
    **_EPISODES,
}
_E0 = _FIRST | {
    "perf/iter_ms": Alias(PIPELINE_KEY, "without the wait: no wall, but copy, train and weight publish"),
    "perf/steps_per_sec": Alias("perf/learner_capacity", "by the time without the wait: what the learner could do"),
}
_E1 = _FIRST | _same("perf/iter_ms", "perf/steps_per_sec", note=CUT_WALL)
_E2 = {key: alias for key, alias in _E1.items() if key != MIXED_WAIT_KEY} | {
    **_same(_learner("collector_wait"), note="with several GPUs the wait for the batch is in it too (#642)"),
    **_same(_learner("other"), note=RESIDUAL),
}
_E3 = {
    "timing/learner_incremental_h2d_ms": Alias(H2D, SUBMITTED),
    "timing/learner_collector_release_ms": Alias(RELEASE),
    "timing/collector_policy_infer_ms": Alias(INFER),
    "timing/collector_mlp_infer_ms": Alias(INFER),
    "timing/collector_sync_idle_ms": Alias(LEARNER_WAIT, "all idleness, that of the learner among it"),
    "perf/collector_active_steps_per_sec": Alias("perf/collector_capacity"),
    **_same("perf/iter_ms", "perf/steps_per_sec", note=CUT_WALL),
    **_same(_learner("other"), note=RESIDUAL),
    **_EPISODES,
}
_E4 = {key: alias for key, alias in _E3.items() if "incremental" not in key and "idle" not in key} | {
    "timing/learner_replay_stage_ms": Alias(H2D, "staging rollouts for the device, copies on the host among it"),
    "timing/collector_learner_action_wait_ms": Alias(LEARNER_WAIT, "the learner chooses the actions: that is in it"),
    INFERENCE_KEY: Alias(INFERENCE_KEY, "the learner chooses the actions; no phase of ours"),
    REQUEST_KEY: Alias(REQUEST_KEY, "asking the learner for actions; no phase of ours"),
}
_E5_PHASES = (
    ("learner", ("collector_wait", "replay_batch_wait", "replay_sample", "weight_publish")),
    ("collector", ("env_step", "replay_write")),
)
_E5 = {
    f"Perf/{side}_{phase}_ms": Alias(f"timing/{side}_{phase}_ms") for side, phases in _E5_PHASES for phase in phases
} | {
    "Train/iteration": Alias("iteration"),
    "Train/mean_reward": Alias("rollout/ep_rew_mean"),
    "Train/mean_episode_length": Alias("rollout/ep_len_mean"),
    "Loss/actor": Alias("train/actor_loss"),
    "Loss/critic": Alias("train/critic_loss"),
    "Loss/temperature": Alias("train/alpha_loss"),
    "Loss/entropy": Alias("train/entropy"),
    "Policy/temperature": Alias("train/ent_coef"),
    "Perf/total_fps": Alias("perf/steps_per_sec", CUT_WALL),
    "Perf/iteration_time": Alias("perf/iter_ms", CUT_WALL, MS_PER_S),
    "Perf/learning_time": Alias(TRAIN, scale=MS_PER_S),
    "Perf/collection_time": Alias(ROLLOUT_KEY, "of the latest rollout alone", MS_PER_S),
    "Perf/learner_collector_release_ms": Alias(RELEASE),
    "Perf/learner_replay_stage_ms": _E4["timing/learner_replay_stage_ms"],
    "Perf/learner_inference_ms": _E4[INFERENCE_KEY],
    "Perf/collector_mlp_infer_ms": Alias(INFER),
    "Perf/collector_inference_request_ms": _E4[REQUEST_KEY],
    "Perf/collector_learner_action_wait_ms": _E4["timing/collector_learner_action_wait_ms"],
}
_RSL_RL = {
    "Train/mean_reward": Alias("rollout/ep_rew_mean"),
    "Train/mean_episode_length": Alias("rollout/ep_len_mean"),
    "Perf/total_fps": Alias("perf/steps_per_sec", "by collection and learning time alone"),
    "Perf/learning_time": Alias(TRAIN, scale=MS_PER_S),
    "Perf/collection time": Alias(ROLLOUT_KEY, scale=MS_PER_S),
    "Perf/collection_time": Alias(ROLLOUT_KEY, scale=MS_PER_S),
}
_SB3 = {
    "time/fps": Alias("perf/steps_per_sec", SINCE_START),
    "train/ent_coef_loss": Alias("train/alpha_loss"),
}
_CLEANRL = {
    "charts/episodic_return": Alias("rollout/ep_rew_mean", ONE_EPISODE),
    "charts/episodic_length": Alias("rollout/ep_len_mean", ONE_EPISODE),
    "charts/SPS": Alias("perf/steps_per_sec", SINCE_START),
    "losses/qf_loss": Alias("train/critic_loss"),
    "losses/actor_loss": Alias("train/actor_loss"),
    "losses/alpha": Alias("train/ent_coef"),
    "losses/alpha_loss": Alias("train/alpha_loss"),
}

OURS = Vocabulary("offpolicy", ((_learner("checkpoint"),), ("time/eta_s",)), _OURS)
# In the order in which they are tried.
VOCABULARIES: tuple[Vocabulary, ...] = (
    OURS,
    Vocabulary("UniLab E5 (uni_rl)", (("Perf/total_fps", "Train/iteration"), ("Perf/learner_weight_publish_ms",)), _E5),
    Vocabulary(
        "UniLab E4 (from #961)",
        ((INFERENCE_KEY,), ("timing/collector_learner_action_wait_ms",), ("timing/learner_replay_stage_ms",)),
        _E4,
    ),
    Vocabulary(
        "UniLab E3 (from #948)",
        (("timing/learner_collector_release_ms",), ("timing/collector_sync_idle_ms",)),
        _E3,
    ),
    Vocabulary("UniLab E1 (June 2026)", ((MIXED_WAIT_KEY, PIPELINE_KEY),), _E1),
    Vocabulary("UniLab E0 (May 2026)", ((MIXED_WAIT_KEY,),), _E0),
    Vocabulary("UniLab E2 (from #639)", ((_learner("collector_wait"), "timing/learner_weight_sync_ms"),), _E2),
    Vocabulary("RSL-RL", (("Perf/total_fps",),), _RSL_RL, axis_is_env_steps=False),
    Vocabulary("Stable-Baselines3", (("time/fps",),), _SB3),
    Vocabulary("CleanRL", (("charts/SPS",), ("charts/episodic_return",)), _CLEANRL),
)

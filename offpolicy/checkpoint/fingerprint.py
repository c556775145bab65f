"""The part of a configuration that a checkpoint must share to be loaded."""

from __future__ import annotations

from typing import Any

from offpolicy.config.parsing import plain
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec

CHECKPOINT_LAYOUT = (
    2  # version of the set of files in a checkpoint; 2: one replay file per collector, one state per rank
)


def fingerprint(cfg: RunConfig, spec: SpaceSpec) -> dict[str, Any]:
    """Returns, as JSON data, what must be equal for a checkpoint to fit a configuration."""
    algo = cfg.algo
    own = {"rollout.length": cfg.rollout.length, "algo.normalize_value": algo.normalize_value}
    rollouts = own if algo.learns_from_rollouts else {}
    names = ("stage", "latent_dim", "encoder_dims") if algo.name == "hora" else ()
    hora = {f"algo.{name}": plain(getattr(algo, name)) for name in names}
    return {
        **rollouts,
        **hora,
        "checkpoint layout": CHECKPOINT_LAYOUT,
        "algo.name": algo.name,
        "algo.hidden_dims": list(algo.hidden_dims),
        "algo.activation": algo.activation,
        "algo.critic_layer_norm": algo.critic_layer_norm,
        "algo.normalize_obs": algo.normalize_obs,
        "algo.n_step": algo.n_step,
        "algo.gamma": algo.gamma,
        "env observation size": spec.obs_dim,
        "env action size": spec.num_actions or spec.action_dim,
    }

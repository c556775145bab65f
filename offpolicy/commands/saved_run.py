"""A saved run as far as its policy goes: its configuration, one of its checkpoints, and its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import CHECKPOINTS, BestPolicy, Checkpoint, read_best, run_store
from offpolicy.collect.evaluation import Actor, deterministic_actor
from offpolicy.commands.options import PolicyChoice
from offpolicy.commands.trust import check_trust
from offpolicy.config.parsing import flatten, is_within, merge
from offpolicy.config.run_files import read_config, read_spec
from offpolicy.config.schema import RunConfig
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import CheckpointError, ConfigError
from offpolicy.launch.run_lock import is_running
from offpolicy.nets.policy import Policy
from offpolicy.training.rank import pick_device
from offpolicy.training.resume import learner_tensors
from offpolicy.types import SpaceSpec

CHANGEABLE = ("env.kwargs", "env.measure", "env.step_timeout_s")


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run, the policy of one of its checkpoints or its best one, and where it acts."""

    path: Path
    cfg: RunConfig
    spec: SpaceSpec
    checkpoint: Checkpoint | BestPolicy
    tensors: Mapping[str, Tensor]  # of the policy; read at once, because a run that goes on removes its checkpoints
    env: EnvConfig
    seed: int  # of the environments
    device: str

    @classmethod
    def find(cls, path: Path, choice: PolicyChoice) -> SavedRun:
        """Reads the run of a directory. Raises `ConfigError`, also for code that needs trust, or `CheckpointError`."""
        check_trust(path, is_trusted=choice.is_trusted)
        cfg, spec = read_config(path), read_spec(path)
        if refused := [key for key in flatten(choice.overrides) if not is_within(key, CHANGEABLE)]:
            raise ConfigError([f"{key}: cannot change here, allowed {', '.join(CHANGEABLE)}" for key in refused])
        env = RunConfig.from_mapping(merge(cfg.to_mapping(), choice.overrides)).env
        seed = cfg.seed if choice.seed is None else choice.seed
        if choice.is_best:
            checkpoint: Checkpoint | BestPolicy = read_best(path)
            tensors = _policy_tensors(checkpoint)
        else:
            checkpoint, tensors = _saved_policy(path, choice.step)
            if choice.step is None and is_running(path):
                saved = f"{checkpoint.env_steps:,} of {cfg.total_timesteps:,} env steps"
                sys.stderr.write(f"offpolicy: {path} is in progress; this is its newest checkpoint, of {saved}\n")
        return cls(path, cfg, spec, checkpoint, tensors, env, seed, choice.device)

    def require_spaces(self, now: SpaceSpec) -> None:
        """Raises `ConfigError` where an environment with these spaces is not what the policy was made for."""
        if differences := self.spec.differences(now):
            raise ConfigError(f"run: the policy of {self.path} cannot act there: {', '.join(differences)}")

    def actor(self) -> Actor:
        """Returns the policy, ready to act without noise."""
        return deterministic_actor(self.policy())

    def policy(self) -> Policy:
        """Returns the policy with the weights, and the exploration, of the checkpoint. Raises `CheckpointError`."""
        policy = make_policy(self.cfg.algo, self.spec).eval()
        try:
            policy.load_state_dict(self.tensors)
        except RuntimeError as error:  # other names or shapes
            raise CheckpointError(f"{self.checkpoint.path / 'learner.safetensors'}: {error}") from error
        policy.explore_with(self.cfg.algo.value(self.cfg.algo.exploration_noise, self.checkpoint.env_steps))
        return policy.to(pick_device(self.device, 0))


def _saved_policy(path: Path, step: int | None) -> tuple[Checkpoint, Mapping[str, Tensor]]:
    """Returns the newest checkpoint with its policy, or that of an env step; names damaged ones on stderr."""
    store = run_store(path)
    while True:
        found = store.newest_valid(reads_rows=False) if step is None else store.at(step, reads_rows=False)
        try:
            tensors = {} if found is None else _policy_tensors(found)
        except CheckpointError:
            if found is not None and found.path.exists():  # else its run has removed it meanwhile: a newer one is there
                raise
            continue
        sys.stderr.write("".join(f"offpolicy: {problem}\n" for problem in store.rejected))
        if found is None:
            advice = "train again, or wait for a run in progress to save one (Ctrl-C there saves one now)"
            raise CheckpointError(f"run: {path / CHECKPOINTS} holds no usable checkpoint: {advice}")
        return found, tensors


def _policy_tensors(checkpoint: Checkpoint | BestPolicy) -> Mapping[str, Tensor]:
    """Returns the tensors of a policy by its own names, as copies."""
    tensors, prefix = learner_tensors(checkpoint), "policy."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

"""What every learner process is made of, besides its batch source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offpolicy.algos.build import make_learner
from offpolicy.algos.learner import LearnerState
from offpolicy.checkpoint import Checkpoint, CheckpointStore
from offpolicy.data.pace import Anchor
from offpolicy.data.ring import Ring
from offpolicy.data.sources import ReplaySource, UniformSampler
from offpolicy.errors import ConfigError, EnvFailure, NumericsError
from offpolicy.ipc.child import ChildContext
from offpolicy.ipc.control import ControlPage, Word
from offpolicy.ipc.gate import LearnerGate
from offpolicy.ipc.mailbox import Mailbox
from offpolicy.loop import Parts, train
from offpolicy.nets.policy import flat_size
from offpolicy.seeding import generator, generator_state, set_generator_state, torch_seed
from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.ledger import TimeAccount, make_ledger
from offpolicy.timing.phases import LearnerPhase

from . import wiring
from .duties import Checkpointer, Evaluator, Reporter, WeightPublisher


def pick_device(name: str) -> torch.device:
    """The device of a configuration value; refuses what is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: got {name!r}, allowed auto, cpu, cuda or cuda:<index>") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: got {name}, allowed auto, cpu or one of {torch.cuda.device_count()} CUDA devices")
    return device


class Session:
    """One learner process: its learner, its view of the shared memory and its periodic duties."""

    def __init__(self, context: ChildContext) -> None:
        self.context = context
        self.job = wiring.Assignment.of(context)
        cfg = self.job.cfg
        self.ledger: TimeAccount = make_ledger(
            LearnerPhase, is_enabled=cfg.timing.enabled, opened_ns=process_birth_ns()
        )
        torch.set_num_threads(wiring.thread_budget(cfg)["learner"])
        torch.set_flush_denormal(True)
        self.device = pick_device(cfg.device)
        self.control = ControlPage(context.block("control"))
        self.gate = LearnerGate(self.control, context.bell("learner_bell"), context.bell("collector_bell"))
        self.ring = Ring(context.block("replay"), wiring.row_layout(self.job.spec).width, np.float32)
        self.learner = make_learner(cfg.algo, self.job.spec, self.device, torch_seed(cfg.seed, "learner"))
        self.sampler = UniformSampler(self.ring, generator(cfg.seed, "replay", 0), guard=8 * cfg.env.num_envs)
        mailbox = Mailbox(context.block("weights"), 4 * flat_size(self.learner.policy))
        self.publisher = WeightPublisher(self.learner, mailbox, self.control)
        self.evaluator = Evaluator(self)
        self.checkpointer = Checkpointer(self)
        self.anchor = Anchor(wiring.first_learning_step(cfg), 0)
        self.fresh_from = 0
        self.source: ReplaySource | None = None
        if self.job.checkpoint is not None:
            self._resume(CheckpointStore(Path(self.job.run_dir) / "checkpoints").at(self.job.checkpoint))
        self.publisher.publish()
        self.reporter = Reporter(self)

    @property
    def env_steps(self) -> int:
        """Transitions collected so far."""
        return self.gate.env_steps

    def is_stopping(self) -> bool:
        """Whether the supervisor asked to stop; asking shows that this process makes progress."""
        self.control.bump(Word.LEARNER_PROGRESS)
        return self.control.is_stopping

    def run(self, parts: Parts) -> None:
        """Train. The environment's failure in an evaluation costs the run, not what it has learnt."""
        try:
            train(parts)
        except EnvFailure:
            self.checkpointer.run_last(is_complete=False)
            raise
        finally:
            self.reporter.publish()

    def check_finite(self) -> None:
        """Raise `NumericsError` once a loss was NaN or Inf; the parameters are those from before it."""
        if self.learner.has_diverged():
            raise NumericsError(
                f"a loss became NaN or Inf before env step {self.env_steps}; the parameters were kept from then on."
                " Lower algo.actor_lr or algo.critic_lr, set algo.max_grad_norm, or check the reward's scale"
            )

    def state_json(self, state: LearnerState) -> dict[str, Any]:
        """The numbers of a checkpoint."""
        source = self.source
        return {
            "numbers": state.numbers,
            "env_steps": self.env_steps,
            "start": list(astuple(self.anchor)),
            "fresh_from": source.fresh_from if source else self.fresh_from,
            "sampler": generator_state(self.sampler.rng),
            "replay_first": self.ring.oldest,
            "last_eval_step": self.evaluator.last_step,
            "fingerprint": wiring.fingerprint(self.job.cfg, self.job.spec),
        }

    def _resume(self, checkpoint: Checkpoint) -> None:
        state: Mapping[str, Any] = checkpoint.json("state")
        tensors = {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors("learner").items()}
        self.learner.load_state(LearnerState(tensors, state["numbers"]))
        self.control.set(Word.UPDATES, self.learner.num_updates)
        set_generator_state(self.sampler.rng, state["sampler"])
        self.fresh_from = state["fresh_from"]
        self.evaluator.last_step = state["last_eval_step"]
        self.checkpointer.last_step = checkpoint.env_steps
        self.anchor = Anchor(*state["start"])
        if not checkpoint.has("replay"):
            # The ring is empty: gather `learning_starts` new rows first, and owe nothing for those before.
            first = checkpoint.env_steps + wiring.first_learning_step(self.job.cfg)
            self.anchor, self.fresh_from = Anchor(first, self.learner.num_updates), 0

"""The evaluations of a run, with all that follows from one, for whichever process makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint.formats import Array
from offpolicy.collect.eval_video import EvalVideo
from offpolicy.collect.evaluation import Episode, EpisodeCallbacks, deterministic_actor, run_episodes
from offpolicy.collect.evaluations import Evaluations
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.config.schema import RunConfig
from offpolicy.nets.policy import flat_size, load_flat
from offpolicy.timing.ledger import Ledger, NullLedger
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import EvalResult, Float32, SpaceSpec


class Send(Protocol):
    """The call that sends a message to the supervisor."""

    def __call__(self, kind: str, **fields: Any) -> None:  # Any: JSON values
        """Sends it."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """The services of the process that evaluates."""

    should_stop: Callable[[], bool]  # as in `EpisodeCallbacks`
    warn: Callable[[str], None]
    send: Send
    ledger: Ledger = field(default_factory=NullLedger)
    close_failed: Callable[[Callable[[], object]], object] = lambda close: close()  # as in `EpisodeCallbacks`


class RunEvaluation:
    """Evaluates, sends episodes and result, records it, keeps the best policy, asks for an early stop, and films."""

    def __init__(
        self, cfg: RunConfig, spec: SpaceSpec, run_dir: Path, kept_step: int, context: EvaluationContext
    ) -> None:
        """`kept_step`: env steps up to which evaluations stay recorded: later ones are made again."""
        self._cfg, self._context = cfg, context
        self._policy = make_policy(cfg.algo, spec).eval()
        self._evaluations = Evaluations(run_dir, kept_step, cfg.stop, context.warn)
        self._video = EvalVideo(cfg, spec, run_dir, context.warn)
        self.policy_size = flat_size(self._policy)  # numbers of the flat policy
        self.episodes = 0  # of all evaluations
        self._send_stop_reason()

    @property
    def stops_early(self) -> bool:
        """True if the results so far end the run (`stop.*`)."""
        return self._evaluations.stop_reason is not None

    def evaluate(self, flat: Float32, env_steps: int, policy_version: int) -> EvalResult | None:
        """Evaluates the flat policy [P]; None if stopped. Raises `EnvFailure`, `NumericsError`.

        Where the run skips bad transitions, an evaluation in which an environment gave NaN or Inf has the mean NaN.
        """
        cfg, context = self._cfg, self._context
        with context.ledger.phase(EvaluatorPhase.WEIGHT_APPLY):
            load_flat(self._policy, flat)

        def send_episode(episode: Episode) -> None:
            record = {
                "env_steps": env_steps,
                "policy_version": policy_version,
                "episode": episode.index,
                "ep_return": episode.ep_return,
                "ep_length": episode.length,
                "terminated": episode.terminated,
                "truncated": episode.truncated,
                "success": episode.success,
                "measure": episode.measure,
            }
            context.send("eval_episode", **{name: value for name, value in record.items() if math.isfinite(value)})

        callbacks = EpisodeCallbacks(
            should_stop=context.should_stop,
            on_end=send_episode,
            ledger=context.ledger,
            close_failed=context.close_failed,
        )
        act = deterministic_actor(self._policy)
        try:
            found = run_episodes(act, cfg.env, episodes=cfg.eval.episodes, seed=cfg.seed, callbacks=callbacks)
        except BadEpisodeError as error:
            if cfg.env.max_bad_rows == 0:
                raise
            context.warn(f"{error}; env.max_bad_rows={cfg.env.max_bad_rows} lets the run go on without a result")
            result = EvalResult(env_steps, math.nan, math.nan, math.nan, 0, policy_version)
        else:
            if len(found.ep_return) < cfg.eval.episodes:
                return None
            means = float(found.ep_return.mean()), float(found.ep_return.std()), float(found.length.mean())
            result = EvalResult(env_steps, *means, cfg.eval.episodes, policy_version)
        self.episodes += result.episodes
        context.send("eval", **result._asdict())
        self._evaluations.add(result, self._tensors())
        self._send_stop_reason()
        return result

    def film(self, env_steps: int) -> None:
        """Begins the video of the policy that was evaluated last; returns at once."""
        self._video.film(self._tensors(), env_steps)

    def finish(self) -> None:
        """Gives the videos that are still to be made some time."""
        self._video.finish()

    def close(self) -> None:
        """Ends the video that is being made."""
        with ExitStack() as closing:  # both, whatever one of them raises
            closing.callback(self._evaluations.close)
            closing.callback(self._video.close)

    def _tensors(self) -> dict[str, Array]:
        """Returns the policy that was evaluated last, by the names in a checkpoint's learner: views."""
        return {f"policy.{name}": tensor.numpy() for name, tensor in self._policy.state_dict().items()}

    def _send_stop_reason(self) -> None:
        if (reason := self._evaluations.stop_reason) is not None:
            self._context.send("early_stop", text=reason)

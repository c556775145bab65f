"""The evaluations of a run, with all that follows from one, for whichever process makes them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from offpolicy.collect.eval_video import EvalVideo
from offpolicy.collect.evaluations import Evaluations
from offpolicy.collect.policy_evaluation import EvaluationContext, PolicyEvaluation
from offpolicy.config.schema import RunConfig
from offpolicy.types import EvalResult, Float32, SpaceSpec


class Send(Protocol):
    """The call that sends a message to the supervisor."""

    def __call__(self, kind: str, **fields: Any) -> None:  # Any: JSON values
        """Sends it."""
        ...


class RunEvaluation:
    """Evaluates, sends and records the result, keeps the best policy, asks for an early stop, and films."""

    def __init__(  # noqa: PLR0913  # what an evaluation is of, and where it goes
        self, cfg: RunConfig, spec: SpaceSpec, run_dir: Path, kept_step: int, context: EvaluationContext, send: Send
    ) -> None:
        """`kept_step`: env steps up to which evaluations stay recorded: later ones are made again."""
        self._send = send
        self._evaluation = PolicyEvaluation(cfg, spec, run_dir, kept_step, context)
        self._evaluations = Evaluations(run_dir, kept_step, cfg.stop, context.warn)
        self._video = EvalVideo(cfg, spec, run_dir, context.warn)

    def open(self) -> None:
        """Starts the hook's worker, and sends why the run is to stop if it is. Raises `ConfigError` for a bad hook."""
        self._evaluation.open()
        self._send_stop_reason()

    @property
    def policy_size(self) -> int:
        """Numbers of the flat policy."""
        return self._evaluation.policy_size

    @property
    def stops_early(self) -> bool:
        """True if the results so far end the run (`stop.*`)."""
        return self._evaluations.stop_reason is not None

    @property
    def episodes(self) -> int:
        """Episodes of all evaluations."""
        return self._evaluation.episodes

    @property
    def post_failures(self) -> int:
        """Failures of the hook in all evaluations."""
        return self._evaluation.post_failures

    def evaluate(self, flat: Float32, env_steps: int, policy_version: int) -> EvalResult | None:
        """Evaluates the flat policy [P]; None if stopped. Raises `EnvFailure`, `NumericsError`."""
        result = self._evaluation.evaluate(flat, env_steps, policy_version)
        if result is not None:
            self._send("eval", **result._asdict())
            self._evaluations.add(result, self._evaluation.tensors())
            self._send_stop_reason()
        return result

    def film(self, env_steps: int) -> None:
        """Begins the video of the policy that was evaluated last; returns at once."""
        self._video.film(self._evaluation.tensors(), env_steps)

    def finish(self) -> None:
        """Gives the videos that are still to be made some time."""
        self._video.finish()

    def close(self) -> None:
        """Ends the hook's worker and the video that is being made."""
        with ExitStack() as closing:  # all of them, whatever one of them raises
            for part in (self._video, self._evaluations, self._evaluation):
                closing.callback(part.close)

    def _send_stop_reason(self) -> None:
        if (reason := self._evaluations.stop_reason) is not None:
            self._send("early_stop", text=reason)

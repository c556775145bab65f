"""Periodic evaluation during training, by rank 0 itself or by the evaluator process."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from offpolicy.collect.run_evaluation import RunEvaluation
from offpolicy.distributed.world import World
from offpolicy.errors import EnvFailure, NumericsError, PeerEnvFailure
from offpolicy.output import counted
from offpolicy.processes.control_page import ControlPage, EvaluatorWord
from offpolicy.timing.clock import Stopwatch
from offpolicy.training.rank import Rank
from offpolicy.training.run_memory import EVALUATOR_WAKE, evaluation_requests
from offpolicy.training.weight_publisher import WeightPublisher

ROUND_S = 1.0  # seconds; longest wait between two agreements, so that a failed or stopping rank is noticed


class Evaluator(Protocol):
    """Evaluates the published weights for rank 0."""

    @property
    def last_result_step(self) -> int:
        """Env steps of the last evaluation whose result is known: a resumed run repeats the others."""
        ...

    def evaluate(self, env_steps: int) -> None:
        """Starts an evaluation of the present weights. Raises `EnvFailure`, `NumericsError`."""
        ...

    @property
    def stops_early(self) -> bool:
        """True once the results so far end the run (`stop.*`)."""
        ...

    def wait_result(self) -> bool:
        """True if the result of the newest evaluation is known; waits for it, `ROUND_S` at most."""
        ...

    def close(self) -> None:
        """Ends what the evaluator has started."""
        ...


class PeriodicEvaluation:
    """Evaluates every `eval.every` env steps and at the end, in the same iteration of every rank.

    Rank 0 has an evaluator; the other ranks wait until it has returned.
    """

    def __init__(
        self,
        rank: Rank,
        world: World,
        evaluator: Evaluator | None,
        last_step: int,
    ) -> None:
        self._rank, self._world, self.evaluator = rank, world, evaluator
        self.last_step, self._evaluated_step, self._every = last_step, -1, rank.cfg.eval.every

    @property
    def stops_early(self) -> bool:
        """True on rank 0 once the results so far end the run (`stop.*`); the other ranks agree with it."""
        return self.evaluator is not None and self.evaluator.stops_early

    def is_due(self) -> bool:
        """True if a multiple of `eval.every` env steps was passed since the last time.

        That of the whole budget is left to `run_last`: the learner may have updates to make still, and what comes after
        the collectors' last step is in none of their rates.
        """
        every, steps = self._every, self._world.env_steps
        is_last = steps >= self._rank.cfg.total_timesteps
        return every > 0 and not is_last and steps // every > self.last_step // every

    def run(self) -> None:
        """Evaluates."""
        self._evaluate(self._world.env_steps)

    def run_last(self, *, is_complete: bool) -> bool:
        """Evaluates the end, unless the run was asked to stop, or has just been evaluated.

        True if the run is complete: all ranks agree that its last result is known, or that the results so far end it.
        """
        if not is_complete:
            return self._rank.cfg.stop.is_set and self._world.any(self.stops_early)
        if self._evaluated_step != self._world.env_steps:
            self._evaluate(self._world.env_steps)
        with self._rank.activity("evaluating the final policy"):
            while self._is_result_missing():
                if self._world.agree(is_stopping=self._rank.is_stopping()):
                    return not self._is_result_missing()
        return True

    def close(self) -> None:
        """Ends what the evaluator has started."""
        if self.evaluator is not None:
            self.evaluator.close()

    def _is_result_missing(self) -> bool:
        return self._world.any(self.evaluator is not None and not self.evaluator.wait_result())

    def _evaluate(self, env_steps: int) -> None:
        """Raises `EnvFailure` on every rank if the environment fails on rank 0, `NumericsError` if the policy does."""
        self.last_step = self._evaluated_step = env_steps
        if self._rank.cfg.eval.episodes == 0:
            return
        failure: EnvFailure | NumericsError | None = None
        if self.evaluator is not None:
            try:
                self.evaluator.evaluate(env_steps)
            except (EnvFailure, NumericsError) as error:
                failure = error
        if self._world.any(isinstance(failure, EnvFailure)):
            raise failure or PeerEnvFailure("the environment failed in the evaluation on rank 0")
        if self._world.any(failure is not None):
            raise failure or NumericsError("the policy's action was NaN or Inf in the evaluation on rank 0")


class EarlyStop:
    """The wish to stop, of the supervisor or of the evaluations."""

    def __init__(self, supervisor: ControlPage, evaluation: PeriodicEvaluation) -> None:
        self._supervisor, self._evaluation = supervisor, evaluation

    @property
    def is_stopping(self) -> bool:
        """True from the request on, or once the results so far end the run."""
        return self._supervisor.is_stopping or self._evaluation.stops_early


class InlineEvaluator:
    """Evaluates on this thread: training stands still meanwhile."""

    def __init__(self, rank: Rank, publisher: WeightPublisher, last_step: int) -> None:
        self._rank, self._publisher, self.last_result_step = rank, publisher, last_step
        self._is_known = True
        job, child = rank.job, rank.child
        self._evaluation = RunEvaluation(
            job.cfg,
            job.spec,
            Path(job.run_dir),
            job.kept_eval_step,
            should_stop=rank.is_stopping,
            warn=rank.warn,
            send=child.send,
            close_failed=child.closing.callback,
        )

    @property
    def stops_early(self) -> bool:
        """See `Evaluator`."""
        return self._evaluation.stops_early

    def evaluate(self, env_steps: int) -> None:
        """Evaluates the present weights and sends the result."""
        episodes = counted(self._rank.cfg.eval.episodes, "episode")
        with self._rank.activity(f"evaluating {episodes}: learning waits"):
            result = self._evaluation.evaluate(self._publisher.flat, env_steps, self._publisher.version)
        self._is_known = result is not None  # a stop leaves an evaluation without a result
        if result is not None:
            self._evaluation.film(env_steps)
            self.last_result_step = env_steps

    def wait_result(self) -> bool:
        """True unless a stop has left the result unknown; never waits."""
        return self._is_known

    def close(self) -> None:
        """Ends the video that is being made; a run that was not stopped gives it some time."""
        if not self._rank.control.is_stopping:
            self._evaluation.finish()
        self._evaluation.close()


class AsyncEvaluator:
    """Sends a copy of the weights to the evaluator process, and waits for it only at the end."""

    def __init__(self, rank: Rank, publisher: WeightPublisher, last_step: int) -> None:
        self._publisher, self._last_step = publisher, last_step
        self._words, self._gate = rank.control.evaluator, rank.gate
        self._requests = evaluation_requests(rank.child, len(publisher.flat))
        self._wake_event = rank.child.wake_event(EVALUATOR_WAKE)

    @property
    def last_result_step(self) -> int:
        """Env steps of the last evaluation that the evaluator process has answered."""
        return max(self._last_step, self._words[EvaluatorWord.EVALUATED_STEPS])

    @property
    def stops_early(self) -> bool:
        """See `Evaluator`."""
        return bool(self._words[EvaluatorWord.STOPS_EARLY])

    def evaluate(self, env_steps: int) -> None:
        """Requests an evaluation and returns at once; a request that was not begun yet is replaced."""
        self._requests.publish(self._publisher.flat, env_steps=env_steps, policy_version=self._publisher.version)
        self._wake_event.set()

    def wait_result(self) -> bool:
        """True if the last request is answered. The evaluator's death, or silence, stops the run and the wait."""
        watch = Stopwatch()
        self._gate.wait_until(lambda: self._is_answered() or watch.elapsed_s() > ROUND_S)
        return self._is_answered()

    def close(self) -> None:
        """Does nothing: the process belongs to the supervisor."""

    def _is_answered(self) -> bool:
        return self._words[EvaluatorWord.ANSWERED] >= self._requests.newest

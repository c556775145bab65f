"""Periodic evaluation during training, by rank 0 itself or by the evaluator process."""

from __future__ import annotations

from pathlib import Path

from offpolicy.collect.evaluation import EpisodeCallbacks
from offpolicy.collect.run_evaluation import RunEvaluation
from offpolicy.distributed.world import World
from offpolicy.errors import EnvFailure, NumericsError, PeerEnvFailure
from offpolicy.output import counted
from offpolicy.processes.control_page import EvaluatorWord
from offpolicy.timing.clock import Stopwatch
from offpolicy.training.rank import Rank
from offpolicy.training.reporter import WeightPublisher
from offpolicy.training.run_memory import EVALUATOR_WAKE, evaluation_requests

ROUND_S = 1.0  # seconds; longest wait between two agreements, so that a failed or stopping rank is noticed


class Evaluator:
    """Has the policy evaluated every `eval.every` env steps and at the end, in the same iteration of every rank.

    Rank 0 has one of the two evaluators below; the other ranks, and a run without evaluations, have this one.
    """

    def __init__(self, rank: Rank, world: World, last_step: int) -> None:
        self._rank, self._world = rank, world
        self._last_step, self._evaluated_step = last_step, -1
        self._result_step, self._stops_early = last_step, False

    @property
    def last_result_step(self) -> int:
        """Env steps of the last evaluation whose result is known: a resumed run repeats the others."""
        return self._result_step

    @property
    def stops_early(self) -> bool:
        """True on rank 0 once the results so far end the run (`stop.*`); the other ranks agree with it."""
        return self._stops_early

    def is_due(self) -> bool:
        """True if a multiple of `eval.every` env steps was passed since the last time, but for the whole budget.

        That is left to `run_last`: what comes after the collectors' last step is in none of their rates.
        """
        every, steps = self._rank.cfg.eval.every, self._world.env_steps
        is_last = steps >= self._rank.cfg.total_timesteps
        return every > 0 and not is_last and steps // every > self._last_step // every

    def run(self) -> None:
        """Evaluates. Raises `EnvFailure` on every rank if the environment fails, `NumericsError` if the policy does."""
        env_steps = self._last_step = self._evaluated_step = self._world.env_steps
        if self._rank.cfg.eval.episodes == 0:
            return
        failure: EnvFailure | NumericsError | None = None
        try:
            self.evaluate(env_steps)
        except (EnvFailure, NumericsError) as error:
            failure = error
        if self._world.any(isinstance(failure, EnvFailure)):
            raise failure or PeerEnvFailure("the environment failed in the evaluation on rank 0")
        if self._world.any(failure is not None):
            raise failure or NumericsError("the policy's action was NaN or Inf in the evaluation on rank 0")

    def run_last(self, *, is_complete: bool) -> bool:
        """Evaluates the end, unless the run was asked to stop, or has just been evaluated.

        True if the run is complete: all ranks agree that its last result is known, or that the results so far end it.
        """
        if not is_complete:
            return self._rank.cfg.stop.is_set and self._world.any(self.stops_early)
        if self._evaluated_step != self._world.env_steps:
            self.run()
        with self._rank.activity("evaluating the final policy"):
            while self._world.any(not self.wait_result()):
                if self._world.agree(is_stopping=self._rank.is_stopping()):
                    return not self._world.any(not self.wait_result())
        return True

    def evaluate(self, env_steps: int) -> None:
        """Starts an evaluation of the published weights. Raises `EnvFailure`, `NumericsError`."""

    def wait_result(self) -> bool:
        """True if the result of the newest evaluation is known; waits for it, `ROUND_S` at most."""
        return True

    def close(self) -> None:
        """Ends what it has started."""


class InlineEvaluator(Evaluator):
    """Evaluates on this thread: training stands still meanwhile."""

    def __init__(self, rank: Rank, world: World, last_step: int, publisher: WeightPublisher) -> None:
        super().__init__(rank, world, last_step)
        self._publisher, self._is_known = publisher, True
        job, child = rank.job, rank.child
        self._evaluation = RunEvaluation(
            job.cfg,
            job.spec,
            Path(job.run_dir),
            job.kept_eval_step,
            send=child.send,
            callbacks=EpisodeCallbacks(should_stop=rank.is_stopping, close_failed=child.closing.callback),
        )
        self._stops_early = self._evaluation.stops_early

    def evaluate(self, env_steps: int) -> None:
        """Evaluates the present weights and sends the result."""
        episodes = counted(self._rank.cfg.eval.episodes, "episode")
        with self._rank.activity(f"evaluating {episodes}: learning waits"):
            result = self._evaluation.evaluate(self._publisher.flat, env_steps, self._publisher.version)
        self._is_known = result is not None  # a stop leaves an evaluation without a result
        if result is not None:
            self._result_step, self._stops_early = env_steps, self._evaluation.stops_early

    def wait_result(self) -> bool:
        """True unless a stop has left the result unknown; never waits."""
        return self._is_known

    def close(self) -> None:
        """Ends the video that is being made; a run that was not stopped gives it some time."""
        if not self._rank.control.is_stopping:
            self._evaluation.video.finish()
        self._evaluation.close()


class AsyncEvaluator(Evaluator):
    """Sends a copy of the weights to the evaluator process, and waits for it only at the end."""

    def __init__(self, rank: Rank, world: World, last_step: int, publisher: WeightPublisher) -> None:
        super().__init__(rank, world, last_step)
        self._publisher, self._words = publisher, rank.control.evaluator
        self._requests = evaluation_requests(rank.child, len(publisher.flat))
        self._wake_event = rank.child.wake_event(EVALUATOR_WAKE)

    @property
    def last_result_step(self) -> int:
        """Env steps of the last evaluation that the evaluator process has answered."""
        return max(self._result_step, self._words[EvaluatorWord.EVALUATED_STEPS])

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

        def is_answered() -> bool:
            return self._words[EvaluatorWord.ANSWERED] >= self._requests.newest

        watch = Stopwatch()
        self._rank.gate.wait_until(lambda: is_answered() or watch.elapsed_s() > ROUND_S)
        return is_answered()

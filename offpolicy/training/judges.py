"""Evaluating while a run goes on: when it is due, and who does it, rank 0 itself or the process beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from offpolicy.collect.policy_evaluation import EvaluationContext, PolicyEvaluation
from offpolicy.errors import EnvFailure, PeerEnvFailure
from offpolicy.processes.control_page import ControlWords, EvaluatorWord
from offpolicy.processes.evaluation_requests import EvaluationRequests
from offpolicy.timing.clock import Stopwatch
from offpolicy.training.resources import has_evaluator
from offpolicy.training.run_memory import EVALUATOR_WAKE

if TYPE_CHECKING:
    from offpolicy.training.learner import Session

ROUND_S = 1.0  # after which the ranks that wait for the last result meet: they must hear of each other, and of a stop


class Evaluator:
    """Evaluates the published weights every `eval.every` env steps and at the end.

    Rank 0 does, or has it done beside training (`eval.beside`); the others go on once it does.
    """

    def __init__(self, session: Session, last_step: int) -> None:
        self._session = session
        self.last_step = last_step
        self._has_evaluated_at = -1
        self._judge: Judge | None = None
        if session.seat.rank == 0 and session.job.cfg.eval.episodes:
            is_beside = has_evaluator(session.job.cfg)
            self._judge = JudgeBeside(session, last_step) if is_beside else JudgeInline(session, last_step)

    @property
    def told_step(self) -> int:
        """Env steps of the last evaluation whose result is known: a resumed run makes up for what was lost."""
        return self._judge.told_step if self._judge is not None else self.last_step

    def run_if_due(self) -> None:
        """Evaluate if a multiple of `eval.every` env steps was passed since the last time."""
        every, env_steps = self._session.job.cfg.eval.every, self._session.env_steps
        if every and env_steps // every > self.last_step // every:
            self._evaluate(env_steps)

    def run_last(self, *, is_complete: bool) -> bool:
        """The final evaluation; left out when the run was asked to stop, and when it was done just now.

        Whether the run is complete: its last result is known, as all ranks agree.
        """
        if not is_complete:
            return False
        if self._has_evaluated_at != self._session.env_steps:
            self._evaluate(self._session.env_steps)
        while self._is_result_missing():
            if self._session.meet():
                return not self._is_result_missing()
        return True

    def _is_result_missing(self) -> bool:
        """Whether the last result is not known yet, as all ranks agree; waits for it, but not for long."""
        return self._session.vote(self._judge is not None and not self._judge.wait_known())

    def close(self) -> None:
        """Leave nothing behind."""
        if self._judge is not None:
            self._judge.close()

    def _evaluate(self, env_steps: int) -> None:
        """Raises `EnvFailure` on every rank if the environment fails on rank 0."""
        self.last_step = self._has_evaluated_at = env_steps
        if self._session.job.cfg.eval.episodes == 0:
            return
        if self._session.team.average_every:  # the networks that are evaluated are those that are saved
            self._session.learner.settle()
            self._session.publisher.publish()
        failure: EnvFailure | None = None
        if self._judge is not None:
            try:
                self._judge.judge(env_steps)
            except EnvFailure as error:
                failure = error
        if self._session.vote(failure is not None):
            raise failure or PeerEnvFailure("the environment failed in the evaluation on rank 0")


class Judge(Protocol):
    """How rank 0 has the published weights evaluated."""

    @property
    def told_step(self) -> int:
        """Env steps of the last evaluation whose result is known."""
        ...

    def judge(self, env_steps: int) -> None:
        """Have the present weights evaluated. Raises `EnvFailure`."""
        ...

    def wait_known(self) -> bool:
        """Whether the result of the newest evaluation is known; waits for it, `ROUND_S` at most."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class JudgeInline:
    """On this thread: training stands still meanwhile."""

    def __init__(self, session: Session, last_step: int) -> None:
        self._session, self.told_step = session, last_step
        self._is_known = True  # whether the newest evaluation has a result
        job = session.job
        context = EvaluationContext(session.seat.is_stopping, lambda text: _warn(session, text))
        self._evaluation = PolicyEvaluation(job.cfg, job.spec, Path(job.run_dir), job.start_step, context)
        self._evaluation.open()  # a bad hook is refused here, by all ranks, not in an evaluation

    def judge(self, env_steps: int) -> None:
        """Evaluate and tell the result."""
        session = self._session
        result = self._evaluation.evaluate(session.publisher.flat, env_steps, session.publisher.version)
        self._is_known = result is not None  # one that was told to stop has none
        if result is not None:
            session.context.send("eval", **result._asdict())
            self.told_step = env_steps

    def wait_known(self) -> bool:
        """Nothing is waited for: only a stop leaves a result unknown."""
        return self._is_known

    def close(self) -> None:
        """End the hook's worker."""
        self._evaluation.close()


class JudgeBeside:
    """In the evaluator's process: this one only leaves a copy of the weights, and waits at the end."""

    def __init__(self, session: Session, last_step: int) -> None:
        self._session, self._told_step = session, last_step
        context = session.context
        self._requests = EvaluationRequests(context.block("evaluation"), len(session.publisher.flat))
        self._wake_event = context.wake_event(EVALUATOR_WAKE)

    @property
    def _words(self) -> ControlWords:
        return self._session.seat.control.evaluator

    @property
    def told_step(self) -> int:
        """As the evaluator says."""
        return max(self._told_step, self._words.get(EvaluatorWord.EVALUATED_STEPS))

    def judge(self, env_steps: int) -> None:
        """Ask, and do not wait; a request that was not begun yet is replaced."""
        publisher = self._session.publisher
        self._requests.ask(publisher.flat, env_steps=env_steps, policy_version=publisher.version)
        self._wake_event.set()

    def wait_known(self) -> bool:
        """Wait for the last answer. The evaluator's death, or silence, stops the run, and with it this."""
        watch = Stopwatch()
        self._session.gate.wait_until(lambda: self._is_known() or watch.elapsed_s() > ROUND_S)
        return self._is_known()

    def _is_known(self) -> bool:
        return self._words.get(EvaluatorWord.ANSWERED) >= self._requests.newest

    def close(self) -> None:
        """Nothing is left here."""


def _warn(session: Session, text: str) -> None:
    session.context.send("warning", text=text)

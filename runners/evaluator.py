"""The evaluator process (`eval.beside`): it evaluates beside training. There is at most one, on the first host."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from offpolicy.collect.evaluation import EpisodeCallbacks
from offpolicy.collect.run_evaluation import RunEvaluation
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import EvaluatorWord, HostWord, Stop
from offpolicy.processes.handshake import POLL_S
from offpolicy.processes.reports import Reports
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.timing.trace_writer import Mark
from offpolicy.training.run_memory import EVALUATOR_WAKE, control_page, evaluation_requests
from offpolicy.training.worker import WorkerSpec, start_worker
from offpolicy.types import EvaluatorTotals


def main(child: ChildContext) -> None:
    """Evaluates until the supervisor ends the run."""
    EvaluatorProcess(child, WorkerSpec.of(child)).run()


class EvaluatorProcess:
    """Answers the newest request, one after another."""

    def __init__(self, child: ChildContext, job: WorkerSpec) -> None:
        self._child = child
        self._ledger = start_worker(job, "evaluator", 0, EvaluatorPhase, threads=1, is_background=True)
        self._control = control_page(child.block("control"), job.cfg)
        self._words = self._control.evaluator
        self._wake_event = child.wake_event(EVALUATOR_WAKE)
        self._learner_wake = child.wake_event("learner_wake-0")
        self._reports = Reports[EvaluatorTotals](child.block("evaluator_report"))
        self._evaluation = RunEvaluation(
            job.cfg,
            job.spec,
            Path(job.run_dir),
            job.kept_eval_step,
            send=child.send,
            callbacks=EpisodeCallbacks(
                should_stop=self._should_stop, close_failed=child.closing.callback, ledger=self._ledger
            ),
        )
        self._requests = evaluation_requests(child, self._evaluation.policy_size)
        self._flat = np.zeros(self._evaluation.policy_size, np.float32)
        self._was_stopped = False  # True if the run was asked to end before it was done
        self._answered, self._reported, self._skipped = 0, 0, 0

    def run(self) -> None:
        """Evaluates until the supervisor ends the run. Raises `EnvFailure`."""
        with contextlib.closing(self._evaluation):
            self._announce_early_stop()
            self._ledger.end_warmup()
            try:
                while self._wait_request():
                    self._answer()
                if not self._was_stopped:
                    self._evaluation.video.finish()
            finally:
                self._report()

    def _wait_request(self) -> bool:
        """Waits for a request that is not answered yet; False when it is time to exit."""
        with self._ledger.phase(EvaluatorPhase.WAIT_REQUEST):
            self._words[EvaluatorWord.IS_WAITING] = 1
            while (stop := self._control.host[HostWord.STOP]) != Stop.EXIT:
                if stop == Stop.RUN and self._requests.newest != self._answered:
                    break
                self._was_stopped |= stop == Stop.FINISH
                self._wake_event.wait(POLL_S)
                self._report_if_requested()
            self._words[EvaluatorWord.PROGRESS] += 1
            self._words[EvaluatorWord.IS_WAITING] = 0
        return stop != Stop.EXIT

    def _answer(self) -> None:
        """Evaluates the newest request and sends the result; a stop leaves the request unanswered."""
        with self._ledger.phase(EvaluatorPhase.WEIGHT_APPLY):
            asked = self._requests.read(self._flat)
            self._ledger.mark(Mark.APPLIED, asked.policy_version)
        missed = asked.number - self._answered - 1  # requests that this one has replaced
        if missed and not self._skipped:
            why = "the one before it was still going on; evaluator/skipped counts them"
            text = f"an evaluation before env step {asked.env_steps:,} was left out: {why}"
            self._child.send("warning", text=f"{text}. Raise eval.every or lower eval.episodes")
        self._skipped += missed
        result = self._evaluation.evaluate(self._flat, asked.env_steps, asked.policy_version)
        if result is not None:
            self._announce_early_stop()
            self._words[EvaluatorWord.EVALUATED_STEPS] = asked.env_steps
            self._words[EvaluatorWord.ANSWERED] = asked.number
            self._learner_wake.set()
        self._answered = asked.number
        self._report()

    def _announce_early_stop(self) -> None:
        """Publishes whether the evaluations so far end the run."""
        self._words[EvaluatorWord.STOPS_EARLY] = int(self._evaluation.stops_early)

    def _should_stop(self) -> bool:
        """True if the run is stopping; the call counts as progress, and reports if a report was requested."""
        self._words[EvaluatorWord.PROGRESS] += 1
        self._report_if_requested()
        return self._control.is_stopping

    def _report_if_requested(self) -> None:
        if self._control.host[HostWord.REPORT_REQUEST] != self._reported:
            self._report()

    def _report(self) -> None:
        self._reported = self._control.host[HostWord.REPORT_REQUEST]
        self._reports.publish(EvaluatorTotals(self._ledger.account(), self._evaluation.episodes, self._skipped))

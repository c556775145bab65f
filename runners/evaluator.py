"""The process that evaluates beside training: `eval.beside`. There is one, on the first host."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import numpy as np
import torch

from offpolicy.collect.policy_evaluation import HOOK_NAMES, EvaluationContext, PolicyEvaluation
from offpolicy.processes.child import ChildContext
from offpolicy.processes.control_page import EvaluatorWord, HostWord, Stop
from offpolicy.processes.evaluation_requests import EvaluationRequest, EvaluationRequests
from offpolicy.processes.handshake import POLL_S
from offpolicy.timing.clock import process_birth_ns
from offpolicy.timing.ledger import make_ledger, trace_names
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.timing.trace_writer import Mark, open_lane
from offpolicy.training.run_memory import EVALUATOR_WAKE, control_page, evaluator_reports
from offpolicy.training.worker_spec import WorkerSpec
from offpolicy.types import EvaluatorTotals


def main(context: ChildContext) -> None:
    """Entry point of the process."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as in the learner, whose evaluation this is
    with contextlib.suppress(OSError):  # as a collector: it must not take a core from the learner that woke it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    Evaluator(context, WorkerSpec.of(context)).run()


class Evaluator:
    """Answers the newest request, one after another, until told to leave."""

    def __init__(self, context: ChildContext, job: WorkerSpec) -> None:
        self._context = context
        trace = open_lane(job.trace_dir, "evaluator-0", trace_names(EvaluatorPhase), "evaluator 0")
        is_enabled, birth_ns = job.cfg.timing.enabled, process_birth_ns()
        self._ledger = make_ledger(EvaluatorPhase, is_enabled=is_enabled, opened_ns=birth_ns, trace=trace)
        self._control = control_page(context.block("control"), job.cfg)
        self._words = self._control.evaluator
        self._wake_event = context.wake_event(EVALUATOR_WAKE)
        self._learner_wake = context.wake_event("learner_wake-0")
        self._reports = evaluator_reports(context.block("evaluator_report"))
        hooks = open_lane(job.trace_dir if job.cfg.eval.hook else None, "hook-0", HOOK_NAMES, "evaluator 0", "hook")
        provided = EvaluationContext(
            self._should_stop, lambda text: context.send("warning", text=text), self._ledger, hooks
        )
        self._evaluation = PolicyEvaluation(job.cfg, job.spec, Path(job.run_dir), job.start_step, provided)
        self._requests = EvaluationRequests(context.block("evaluation"), self._evaluation.policy_size)
        self._flat = np.zeros(self._evaluation.policy_size, np.float32)
        self._answered, self._reported, self._skipped = 0, 0, 0

    def run(self) -> None:
        """Evaluate until told to leave. Raises `EnvFailure`; `ConfigError` for a bad hook."""
        with contextlib.closing(self._evaluation):
            self._evaluation.open()
            self._ledger.end_warmup()
            try:
                while self._wait_request():
                    self._answer()
            finally:
                self._report()

    def _wait_request(self) -> bool:
        """Wait for a request that is not answered yet; False when it is time to go."""
        with self._ledger.phase(EvaluatorPhase.WAIT_REQUEST):
            self._words.set(EvaluatorWord.IS_WAITING, 1)
            while self._stop < Stop.EXIT and (self._is_stopping or self._requests.newest == self._answered):
                self._wake_event.wait(POLL_S)
                self._report_if_wanted()
            self._words.bump(EvaluatorWord.PROGRESS)
            self._words.set(EvaluatorWord.IS_WAITING, 0)
        return self._stop < Stop.EXIT

    def _answer(self) -> None:
        """Evaluate the newest request and say that it is done with; a stop leaves it unanswered."""
        with self._ledger.phase(EvaluatorPhase.WEIGHT_APPLY):
            asked = self._requests.read(self._flat)
            self._ledger.mark(Mark.APPLIED, asked.policy_version)
        self._note_skipped(asked)
        result = self._evaluation.evaluate(self._flat, asked.env_steps, asked.policy_version)
        if result is not None:
            self._context.send("eval", **result._asdict())
            self._words.set(EvaluatorWord.EVALUATED_STEPS, asked.env_steps)
            self._words.set(EvaluatorWord.ANSWERED, asked.number)
            self._learner_wake.set()
        self._answered = asked.number
        self._report()

    def _note_skipped(self, asked: EvaluationRequest) -> None:
        """Count the requests that this one has replaced, and tell of the first."""
        missed = asked.number - self._answered - 1
        if missed and not self._skipped:
            self._context.send(
                "warning",
                text=f"an evaluation before env step {asked.env_steps:,} was left out: the one before it was still"
                " going on; evaluator/skipped counts them. Raise eval.every or lower eval.episodes",
            )
        self._skipped += missed

    def _should_stop(self) -> bool:
        """Whether the run is stopping; asking shows progress, and is when a report is due."""
        self._words.bump(EvaluatorWord.PROGRESS)
        self._report_if_wanted()
        return self._is_stopping

    @property
    def _stop(self) -> int:
        return self._control.host.get(HostWord.STOP)

    @property
    def _is_stopping(self) -> bool:
        return self._control.is_stopping

    def _report_if_wanted(self) -> None:
        if self._control.host.get(HostWord.REPORT_REQUEST) != self._reported:
            self._report()

    def _report(self) -> None:
        self._reported = self._control.host.get(HostWord.REPORT_REQUEST)
        done = self._evaluation
        self._reports.publish(EvaluatorTotals(self._ledger.account(), done.episodes, self._skipped, done.post_failures))

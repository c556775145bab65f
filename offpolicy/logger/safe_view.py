"""A view that never ends the run: when it fails, plain lines follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from rich.console import RenderableType

from offpolicy.logger.console import View
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import disabled
from offpolicy.timing.bottleneck import Verdict
from offpolicy.types import EvalResult


class SafeView:
    """Passes every call to `view`. When one raises, closes it and passes this call and the rest to `plain`."""

    def __init__(self, view: View, plain: View) -> None:
        self._view, self._plain = view, plain

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        self._call(lambda view: view.record(record, verdict))

    def last_record(self, record: Record) -> None:
        self._call(lambda view: view.last_record(record))

    def status(self, status: str) -> None:
        self._call(lambda view: view.status(status))

    def set_header(self, header: RunHeader) -> None:
        self._plain.set_header(header)
        self._call(lambda view: view.set_header(header))

    def evaluation(self, result: EvalResult) -> None:
        self._call(lambda view: view.evaluation(result))

    def activity(self, activity: str) -> None:
        self._call(lambda view: view.activity(activity))

    def stopping(self, message: str) -> None:
        self._call(lambda view: view.stopping(message))

    def message(self, message: str) -> None:
        self._call(lambda view: view.message(message))

    def tick(self) -> None:
        self._call(lambda view: view.tick())

    def finish(self, table: RenderableType) -> None:
        self._call(lambda view: view.finish(table))

    def close(self) -> None:
        self._call(lambda view: view.close())

    def _call(self, call: Callable[[View], None]) -> None:
        try:
            call(self._view)
        except Exception as error:  # the run does not depend on its panel
            failed, self._view = self._view, self._plain
            with contextlib.suppress(Exception):  # it has failed already: as much of it as goes
                failed.close()
            self._plain.message(disabled("the panel", error))
            call(self._plain)

"""What a run shows while it trains: the interface of every view, plain lines, a notebook's output, and a guard."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any, TextIO

from rich.console import RenderableType

from offpolicy.logger.console import number, plain_text, text_of
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import disabled
from offpolicy.model.bottleneck import Verdict
from offpolicy.output import UNKNOWN, drain, return_text, silence
from offpolicy.types import EvalResult

TABLE_WIDTH = 100  # characters of the final table of a run
SHOWN_MESSAGES = 6  # newest messages below the line of progress of a notebook
NOTEBOOK_SHELL = "ZMQInteractiveShell"  # IPython's shell in a kernel, rather than in a terminal


class View:
    """The output of the logger on a terminal, pipe or file; what a view does not define shows nothing."""

    def record(self, record: Record, verdict: Verdict | None = None, *, is_last: bool = False) -> None:
        """Shows the newest record; `verdict` is the one that it holds as text. `is_last`: no iteration follows."""

    def status(self, status: str) -> None:
        """Shows the status of the run before its first record."""

    def set_header(self, header: RunHeader) -> None:
        """Takes over what has become known of the run."""

    def evaluation(self, result: EvalResult) -> None:
        """Shows an evaluation that has just ended."""

    def activity(self, activity: str) -> None:
        """Shows what the run does besides learning, such as `evaluating`; '' when it learns again."""

    def stopping(self, message: str) -> None:
        """Shows at once that the run is being stopped."""
        self.message(message)

    def message(self, message: str) -> None:
        """Shows a line that stays readable."""

    def tick(self) -> None:
        """Answers keys and a resized terminal; called about ten times a second."""

    def finish(self, table: RenderableType) -> None:
        """Shows the final table; nothing follows but `close`."""

    def close(self) -> None:
        """Releases the terminal, once it has taken what was written to it."""


class SafeView:
    """Passes every call to `view`. When one raises, closes it and passes this call and the rest to `plain`."""

    def __init__(self, view: View, plain: View) -> None:
        self._view, self._plain = view, plain

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*values: Any, **options: Any) -> None:  # Any: what the method of that name takes
            try:
                getattr(self._view, name)(*values, **options)
            except Exception as error:  # the run does not depend on its panel
                failed, self._view = self._view, self._plain
                with contextlib.suppress(Exception):  # it has failed already: as much of it as goes
                    failed.close()
                self._plain.message(disabled("the panel", error))
                getattr(self._plain, name)(*values, **options)

        return call


def plain_line(record: Record, total_timesteps: int) -> str:
    """Returns one interval in one line of ASCII; what is not known, as at the end of a run, is left out."""
    steps, text = int(number(record, "env_steps") or 0), partial(text_of, record)
    parts = [
        ("ret", text("rollout/ep_rew_mean"), ""),
        ("thru", text("perf/steps_per_sec"), "/s"),
        ("I", text("perf/collector_capacity"), "/s"),
        ("T", text("perf/learner_capacity"), "/s"),
        ("wait", text("timing/learner_collector_wait_ms", "z.1f"), "ms"),
        ("utd", text("perf/utd"), ""),
        ("eta", text("time/eta_s") if record.get("time/eta_s") else UNKNOWN, ""),
        ("bottleneck", record.get("perf/bottleneck") or UNKNOWN, ""),
    ]
    known = "".join(f" {name}={value}{unit}" for name, value, unit in parts if value != UNKNOWN)
    return f"{min(100, 100 * steps // total_timesteps)}% step={steps}/{total_timesteps}{known}"


class PlainLines(View):
    """Writes one flushed line per interval, until one is refused; there may be no stream at all."""

    def __init__(self, stream: TextIO | None, header: RunHeader) -> None:
        self._stream, self._header, self._status = stream, header, ""

    def record(self, record: Record, verdict: Verdict | None = None, *, is_last: bool = False) -> None:
        self.message(plain_line(record, self._header.total_timesteps))

    def evaluation(self, result: EvalResult) -> None:
        reward, spread = return_text(result.mean_reward), return_text(result.std_reward)
        self.message(f"evaluation step={result.env_steps} ret={reward} std={spread} episodes={result.episodes}")

    def status(self, status: str) -> None:
        """Writes the status as a line, once."""
        if status != self._status:
            self._status = status
            self.message(status)

    def message(self, message: str) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            stream.write(message + "\n")
            stream.flush()
        except Exception as error:  # the run does not depend on its lines
            self._stream = None
            if isinstance(error, OSError):  # not of a stream that a program has put in place of stdout
                silence(stream)

    def finish(self, table: RenderableType) -> None:
        """Writes the table without colours."""
        self.message(plain_text(table, width=TABLE_WIDTH))

    def close(self) -> None:
        """Waits until every line is taken, or nothing is read any more."""
        if self._stream is not None:
            drain(self._stream)


def notebook_display() -> Callable[..., Any] | None:  # Any: IPython is no dependency of ours
    """Returns `IPython.display.display` where this process is the kernel of a notebook; None elsewhere."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    if type(get_ipython()).__name__ != NOTEBOOK_SHELL:
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display


class NotebookView(PlainLines):
    """Shows the newest record with a bar of progress, the newest messages, and at the end the final table."""

    def __init__(self, display: Callable[..., Any], header: RunHeader) -> None:  # Any: as in `notebook_display`
        super().__init__(None, header)
        self._display = display
        self._handle: Any = None  # Any: of the output that is shown again and again
        self._line, self._activity, self._steps = "starting", "", 0.0
        self._messages: list[str] = []

    def record(self, record: Record, verdict: Verdict | None = None, *, is_last: bool = False) -> None:
        self._steps = number(record, "env_steps") or 0.0
        self.status(plain_line(record, self._header.total_timesteps))

    def status(self, status: str) -> None:
        """Shows the status in place of the line of the record."""
        self._line = status
        self._show()

    def activity(self, activity: str) -> None:
        """Shows what the run does beside the line."""
        self._activity = activity
        self._show()

    def message(self, message: str) -> None:
        """Shows the message until as many others have come as are shown."""
        self._messages = [*self._messages, message][-SHOWN_MESSAGES:]
        self._show()

    def finish(self, table: RenderableType) -> None:
        """Shows the table below, where it stays."""
        text = plain_text(table, width=TABLE_WIDTH)
        self._display({"text/html": f"<pre>{escape(text)}</pre>", "text/plain": text}, raw=True, display_id=True)

    def _show(self) -> None:
        text = "\n".join([f"{self._line}  {self._activity}".rstrip(), *self._messages])
        bar = f'<progress value="{self._steps:.0f}" max="{self._header.total_timesteps}" style="width:100%"></progress>'
        shown = {"text/html": f"{bar}<pre>{escape(text)}</pre>", "text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

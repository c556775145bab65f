"""The output of a run in a notebook: one line of progress that is written anew, and lines that stay.

IPython is no dependency of ours: it is there where there is a notebook.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from html import escape
from typing import Protocol

from rich.console import RenderableType

from offpolicy.logger.console import TABLE_WIDTH, View, evaluation_line, number, plain_line, plain_text
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import Verdict
from offpolicy.types import EvalResult

SHOWN_MESSAGES = 6  # newest messages below the line of progress
NOTEBOOK_SHELL = "ZMQInteractiveShell"  # IPython's shell in a kernel, rather than in a terminal


class Handle(Protocol):
    """What `IPython.display.display(display_id=True)` returns."""

    def update(self, obj: object, *, raw: bool) -> None: ...


class Display(Protocol):
    """`IPython.display.display`."""

    def __call__(self, obj: object, *, raw: bool, display_id: bool) -> Handle: ...


def notebook_display(modules: Mapping[str, object] = sys.modules) -> Display | None:
    """Returns the function that shows things in the notebook that this process is the kernel of; None elsewhere."""
    ipython, display = modules.get("IPython"), modules.get("IPython.display")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    if type(shell).__name__ != NOTEBOOK_SHELL:
        return None
    found: Display | None = getattr(display, "display", None)
    return found


class NotebookView(View):
    """Shows the newest record with a bar of progress, the newest messages, and at the end the final table."""

    def __init__(self, display: Display, header: RunHeader) -> None:
        self._display, self._header = display, header
        self._handle: Handle | None = None
        self._line, self._activity, self._steps = "starting", "", 0.0
        self._messages: list[str] = []

    def set_header(self, header: RunHeader) -> None:
        """Takes over what has become known of the run."""
        self._header = header

    def record(self, record: Record, verdict: Verdict | None = None) -> None:
        """Shows the line of the record."""
        self._steps = number(record, "env_steps") or 0.0
        self._line = plain_line(record, self._header.total_timesteps)
        self._show()

    def last_record(self, record: Record) -> None:
        """Shows the line of the record."""
        self.record(record)

    def status(self, status: str) -> None:
        """Shows the status in place of the line."""
        self._line = status
        self._show()

    def evaluation(self, result: EvalResult) -> None:
        """Shows the evaluation as a message."""
        self.message(evaluation_line(result))

    def activity(self, activity: str) -> None:
        """Shows what the run does beside the line."""
        self._activity = activity
        self._show()

    def stopping(self, message: str) -> None:
        """Shows the message at once."""
        self.message(message)

    def message(self, message: str) -> None:
        """Shows the message until as many others have come as are shown."""
        self._messages = [*self._messages, message][-SHOWN_MESSAGES:]
        self._show()

    def finish(self, table: RenderableType) -> None:
        """Shows the table below, where it stays."""
        text = plain_text(table, width=TABLE_WIDTH).rstrip("\n")
        self._display(_bundle(f"<pre>{escape(text)}</pre>", text), raw=True, display_id=True)

    def _show(self) -> None:
        total = self._header.total_timesteps
        line = f"{self._line}  {self._activity}".rstrip()
        bar = f'<progress value="{self._steps:.0f}" max="{total}" style="width:100%"></progress>'
        messages = "\n".join(self._messages)
        shown = _bundle(f"{bar}<pre>{escape(line)}\n{escape(messages)}</pre>", f"{line}\n{messages}")
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _bundle(html: str, text: str) -> dict[str, str]:
    """Returns one output in both forms, as Jupyter's protocol has it; the front end takes the best it knows."""
    return {"text/html": html, "text/plain": text}

"""What a run shows while it trains: plain lines, a notebook's output, or the panel with its keys and Ctrl-Z."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable
from html import escape
from types import FrameType
from typing import IO, Any, TextIO, cast

from rich.console import Console, RenderableType
from rich.text import Text

from offpolicy.logger.console import OwnConsole, number, plain_text
from offpolicy.logger.panel_layout import render
from offpolicy.logger.panel_lines import Shown, plain_line
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.sinks import disabled
from offpolicy.model.bottleneck import Verdict
from offpolicy.output import drain, is_behind, nonblocking, return_text, silence
from offpolicy.types import EvalResult

MESSAGE_RECORDS = 3  # records for which a message stands in the panel
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
        try:
            if self._stream is not None:
                self._stream.write(message + "\n")
                self._stream.flush()
        except Exception as error:  # the run does not depend on its lines
            if isinstance(error, OSError):  # not of a stream that a program has put in place of stdout
                silence(self._stream)
            self._stream = None

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
        self._line, self._activity, self._steps = "starting", "", 0.0
        # Any: of the output that is shown again and again
        self._handle: Any = display({"text/plain": self._line}, raw=True, display_id=True)
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
        self._handle.update({"text/html": f"{bar}<pre>{escape(text)}</pre>", "text/plain": text}, raw=True)


class Terminal:
    """The keys of a terminal, read from `take` to `give_back` without waiting and without echo; Ctrl-Z is noted there.

    keys: descriptor of the terminal that controls this process, or -1. While another job has it, none are read.
    """

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._saved: list[int | list[bytes | int]] | None = None  # settings, while keys are read
        self.is_stopping = False  # after Ctrl-Z: the screen has to be left first

    def take(self) -> bool:
        """Begins to read keys and to note Ctrl-Z, which a program may handle itself; returns whether there are keys."""
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTSTP, self._note)
        if foreground_group(self._keys) == os.getpgrp():
            self._saved = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys, termios.TCSANOW)  # Ctrl-C stays a signal
        return self._saved is not None

    def read(self) -> str:
        """Returns the keys pressed since the last call."""
        is_ours = self._saved is not None and foreground_group(self._keys) == os.getpgrp()
        is_ready = is_ours and select.select([self._keys], [], [], 0)[0]
        return os.read(self._keys, 64).decode("ascii", "ignore") if is_ready else ""

    def give_back(self) -> None:
        """Gives the terminal its settings back, unless another job has it by now; a second call does nothing."""
        if signal.getsignal(signal.SIGTSTP) == self._note:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # From the background, setting them would stop this process. Not TCSADRAIN: after a Ctrl-S it waits for Ctrl-Q.
        if self._saved is not None and foreground_group(self._keys) == os.getpgrp():
            termios.tcsetattr(self._keys, termios.TCSANOW, self._saved)
        self._saved = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_stopping = True


def foreground_group(stream: IO[str] | int) -> int | None:
    """Returns the process group that has the terminal; None where `stream` is not our terminal."""
    try:
        return os.tcgetpgrp(stream if isinstance(stream, int) else stream.fileno())
    except Exception:  # it has no file: a program may have put anything in place of stdout
        return None


def is_foreground(stream: IO[str]) -> bool:
    """False if `stream` is the terminal that controls this process, and another job has it."""
    # 0 is a job outside of this container: it is the one that shows us.
    return foreground_group(stream) in (None, 0, os.getpgrp())


class Panel(View):
    """A rich panel on the terminal's alternate screen, where a resize leaves nothing behind. No refresh thread.

    What it showed last, and all messages, are printed on the ordinary screen when it is closed. While another job has
    the terminal, or it has not taken the last frame yet, nothing is drawn. Raises what drawing raises: `SafeView` goes
    on with plain lines.
    """

    def __init__(self, console: Console, header: RunHeader, keys: int = -1, *, is_full: bool = False) -> None:
        self._console, self._terminal, self._shown = console, Terminal(keys), Shown(header, is_full)
        self._is_closed = self._is_stopping = False
        self._is_stale = False  # the newest frame was not drawn: the terminal had not taken the one before
        self._drawn_size = (0, 0)

    def set_header(self, header: RunHeader) -> None:
        self._shown.header = header

    def record(self, record: Record, verdict: Verdict | None = None, *, is_last: bool = False) -> None:
        """Draws the record; of the last one the course of learning: its times are those of evaluating and saving."""
        self._shown.add(record, verdict, is_last=is_last)
        self._draw()

    def status(self, status: str) -> None:
        """Draws the status, until there is a record."""
        self._shown.status = status
        if not self._shown.num_records:
            self._draw()

    def activity(self, activity: str) -> None:
        if not self._is_stopping:
            self._shown.activity = activity
            self._draw()

    def stopping(self, message: str) -> None:
        """Draws at once that the run is being stopped, and goes on saying so."""
        self._is_stopping, self._shown.activity = True, message
        self._draw()

    def message(self, message: str) -> None:
        """Shows a line for a while; it is printed again at the end."""
        self._shown.messages.append(message)
        self._shown.message_until = self._shown.num_records + MESSAGE_RECORDS
        self._draw()

    def tick(self) -> None:
        """Answers Ctrl-Z, the keys pressed, and a terminal that has another size, or has come back."""
        if self._terminal.is_stopping:
            self._leave()
        keys = self._terminal.read()
        if keys:
            self._shown.is_helping = not self._shown.is_helping and "?" in keys
        console = self._console
        if keys or self._is_stale or not console.is_alt_screen or self._drawn_size != tuple(console.size):
            self._draw()

    def finish(self, table: RenderableType) -> None:
        """Closes the panel, and prints the summary below its last frame."""
        self.close()
        self._console.print(table, crop=False)  # a long command is wrapped by the terminal: it can be pasted

    def close(self) -> None:
        """Gives the terminal back and prints messages and last frame; a second call prints the messages since."""
        shown, is_first = self._shown, not self._is_closed
        self._is_closed = True
        try:
            self._leave()
            while shown.messages:
                self._console.print(Text(shown.messages.pop(0)), soft_wrap=True)  # no path is cut
            if is_first and shown.num_records:
                shown.message_until, shown.activity, shown.is_helping = 0, "", False
                self._console.print(render(shown, *self._console.size))
        finally:
            drain(self._console.file)

    def _draw(self) -> None:
        console, shown = self._console, self._shown
        has_content = bool(shown.num_records or shown.status or shown.activity)
        if self._is_closed or not has_content or not is_foreground(console.file):
            return
        self._is_stale = is_behind(console.file)
        if self._is_stale:
            return
        if not console.is_alt_screen:
            shown.has_help = self._terminal.take()
            console.show_cursor(False)
            console.set_alt_screen(True)
        self._drawn_size = width, height = console.size
        console.update_screen(render(shown, width, height))

    def _leave(self) -> None:
        """Gives screen and keys of the terminal back; after Ctrl-Z stops this process until it is continued."""
        self._terminal.give_back()
        if self._console.is_alt_screen:
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        if self._terminal.is_stopping:
            self._terminal.is_stopping = False
            drain(self._console.file)
            signal.raise_signal(signal.SIGTSTP)  # does nothing where no shell could continue it


def open_view(panel: str, stream: TextIO | None, header: RunHeader) -> View:
    """Returns the panel if `panel` is on, or auto or full on a terminal that can draw one; else plain lines.

    A run that is started in the background has plain lines, and a notebook its own view unless `panel` is off. What a
    program has put in the place of the stream, and cannot be asked, is no terminal.
    """
    stream = None if stream is None else nonblocking(stream)
    plain = PlainLines(stream, header)
    view: View | None = None
    if panel != "off" and (display := notebook_display()) is not None:
        view = NotebookView(display, header)
    elif panel != "off" and stream is not None:
        with contextlib.suppress(Exception):  # of a stream that a program has put in place of stdout, or that is closed
            console = OwnConsole(file=stream, force_terminal=True if panel == "on" else None)
            can_draw = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
            if panel == "on" or (can_draw and stream.isatty() and is_foreground(stream)):
                view = Panel(console, header, 0, is_full=panel == "full")
    return plain if view is None else cast("View", SafeView(view, plain))

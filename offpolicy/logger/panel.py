"""The panel of a terminal: the newest record, redrawn by the caller's calls only; the keys, Ctrl-Z, `fg` and `bg`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
from types import FrameType
from typing import IO, TextIO, cast

from rich.console import Console, RenderableType
from rich.text import Text

from offpolicy.logger.console import OwnConsole, number
from offpolicy.logger.panel_layout import render
from offpolicy.logger.panel_lines import Shown
from offpolicy.logger.record import Record, RunHeader
from offpolicy.logger.view import NotebookView, PlainLines, SafeView, View, notebook_display
from offpolicy.model.bottleneck import Verdict
from offpolicy.output import drain, is_behind, nonblocking

MESSAGE_RECORDS = 3  # records for which a message stands in the panel
REFRESH_S = 0.25  # least seconds between two drawings of records: each costs milliseconds


class Terminal:
    """Reads keys from `take` to `give_back`, without waiting and without echo, and notes SIGTSTP and SIGCONT.

    Both only in the foreground of the terminal that controls this process; a signal that someone else handles stays
    theirs. It is noted until `close`, and answered by `stop`: the terminal has to be given back first.
    """

    def __init__(self, output: IO[str], keys: IO[str] | None = None) -> None:
        self._output, self._keys = output, keys
        self._saved: list[int | list[bytes | int]] | None = None  # settings, while keys are read
        self._handled: list[int] = []
        self.noted: set[int] = set()  # signals for which the terminal is to be given back: `stop` comes next

    def take(self) -> bool:
        """Begins to note the signals, and to read keys: returns whether there are any."""
        if not self._handled and _foreground_group(self._output) is not None:
            for number in (signal.SIGTSTP, signal.SIGCONT):
                if signal.getsignal(number) == signal.SIG_DFL:
                    try:
                        signal.signal(number, self._note)
                    except ValueError:  # not the main thread
                        break
                    self._handled.append(number)
        if self._keys is not None and _foreground_group(self._keys) == os.getpgrp():
            self._saved, quiet = termios.tcgetattr(self._keys), termios.tcgetattr(self._keys)
            quiet[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C stays a signal
            termios.tcsetattr(self._keys, termios.TCSANOW, quiet)
        return self._saved is not None

    def read(self) -> str:
        """Returns the keys pressed since the last call."""
        keys = self._keys
        if keys is None or self._saved is None or _foreground_group(keys) != os.getpgrp():
            return ""
        is_ready = bool(select.select([keys], [], [], 0)[0])
        return os.read(keys.fileno(), 64).decode("ascii", "ignore") if is_ready else ""

    def give_back(self) -> None:
        """Gives the terminal its settings back, unless another job has it by now; a second call does nothing."""
        saved, self._saved = self._saved, None
        # From the background, setting them would stop this process. Not TCSADRAIN: after a Ctrl-S it waits for Ctrl-Q.
        if saved is not None and self._keys is not None and _foreground_group(self._keys) == os.getpgrp():
            termios.tcsetattr(self._keys, termios.TCSANOW, saved)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted.add(number)

    def stop(self) -> None:
        """Stops this process after Ctrl-Z; returns when it is continued. The terminal itself stops the children."""
        is_stopping = signal.SIGTSTP in self.noted
        self.noted.clear()
        if is_stopping:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # does nothing where no shell could continue it
            signal.signal(signal.SIGTSTP, self._note)

    def close(self) -> None:
        """Notes no more signals; a Ctrl-Z without an answer stops the process now. A second call does nothing."""
        self.stop()
        while self._handled:
            signal.signal(self._handled.pop(), signal.SIG_DFL)


def is_foreground(stream: IO[str]) -> bool:
    """False if `stream` is the terminal that controls this process, and another job has it."""
    # 0 is a job outside of this container: it is the one that shows us.
    return _foreground_group(stream) in (None, 0, os.getpgrp())


def _foreground_group(stream: IO[str]) -> int | None:
    """Returns the process group that has the terminal; None where `stream` is not our terminal."""
    try:
        return os.tcgetpgrp(stream.fileno())
    except Exception:  # it has no file: a program may have put anything in place of stdout
        return None


class Panel(View):
    """A rich panel on the terminal's alternate screen, where a resize leaves nothing behind. No refresh thread.

    What it showed last, and all messages, are printed on the ordinary screen when it is closed. While another job has
    the terminal, or it has not taken the last frame yet, nothing is drawn. Raises what drawing raises: `SafeView` goes
    on with plain lines.
    """

    def __init__(
        self, console: Console, header: RunHeader, keys: TextIO | None = None, *, is_full: bool = False
    ) -> None:
        self._console = console
        self._terminal = Terminal(console.file, keys)
        self._shown = Shown(header, is_full)
        self._num_printed = 0  # messages
        self._is_on_screen = self._is_closed = self._is_stopping = False
        self._is_stale = False  # the newest frame was not drawn: the terminal had not taken the one before
        self._drawn_s = float("-inf")
        self._drawn_size = (0, 0)

    def set_header(self, header: RunHeader) -> None:
        self._shown.header = header

    def record(self, record: Record, verdict: Verdict | None = None, *, is_last: bool = False) -> None:
        """Draws the record, unless the last drawing is less than 250 ms old on the run's clock.

        Of the last one only the course of learning: its times are those of the last evaluation and of saving.
        """
        self._shown.add(record, verdict, is_last=is_last)
        wall_s = number(record, "time/elapsed_s") or number(record, "wall_s") or 0.0
        if wall_s - self._drawn_s >= REFRESH_S:
            self._drawn_s = wall_s
            self._draw()

    def status(self, status: str) -> None:
        """Draws the status, until there is a record."""
        self._shown.status = status
        if not self._shown.num_records:
            self._draw()

    def activity(self, activity: str) -> None:
        if not self._is_stopping and activity != self._shown.activity:
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
        if self._terminal.noted:
            self._leave()
            drain(self._console.file)  # before this process stops
            self._terminal.stop()
        keys = self._terminal.read()
        if keys:
            self._shown.is_helping = not self._shown.is_helping and "?" in keys
        if keys or self._is_stale or not self._is_on_screen or self._drawn_size != tuple(self._console.size):
            self._draw()

    def finish(self, table: RenderableType) -> None:
        """Closes the panel, and prints the summary below its last frame."""
        self.close()
        self._console.print(table, crop=False)  # a long command is wrapped by the terminal: it can be pasted

    def close(self) -> None:
        """Gives the terminal back and prints messages and last frame; a second call prints the messages since."""
        is_first, self._is_closed, shown = not self._is_closed, True, self._shown
        try:
            self._leave()
            for message in shown.messages[self._num_printed :]:
                self._num_printed += 1
                self._console.print(Text(message), soft_wrap=True)  # no path is cut
            if is_first and shown.num_records:
                shown.message_until, shown.activity, shown.is_helping = 0, "", False
                self._console.print(render(shown, *self._console.size))
        finally:
            drain(self._console.file)
            self._terminal.close()

    def _draw(self) -> None:
        shown = self._shown
        has_content = bool(shown.num_records or shown.status or shown.activity)
        if self._is_closed or not has_content or not is_foreground(self._console.file):
            return
        self._is_stale = is_behind(self._console.file)
        if self._is_stale:
            return
        if not self._is_on_screen:
            self._is_on_screen = True
            shown.has_help = self._terminal.take()
            self._console.show_cursor(False)
            self._console.set_alt_screen(True)
        self._drawn_size = width, height = self._console.size
        self._console.update_screen(render(shown, width, height))

    def _leave(self) -> None:
        """Gives screen and keys of the terminal back."""
        self._terminal.give_back()
        if self._is_on_screen:
            self._is_on_screen = False
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)


def open_view(panel: str, stream: TextIO | None, header: RunHeader) -> View:
    """Returns the panel if `panel` is on, or auto or full on a terminal that can draw one; else plain lines.

    A run that is started in the background has plain lines, as other jobs there. A notebook has a line of progress
    that is written again and again, unless `panel` is off. No view but that one waits for whoever reads the stream. A
    program may have put anything in its place, or nothing: what cannot be asked is no terminal.
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
                view = Panel(console, header, sys.stdin, is_full=panel == "full")
    return plain if view is None else cast("View", SafeView(view, plain))

"""A terminal of a given size: it draws what is written to it, as far as the panel writes such things."""

from __future__ import annotations

import io
import re

TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|(\r?\n)|([^\x1b\r\n]+)|(.)", re.DOTALL)


class Terminal(io.StringIO):
    """Two screens, of which a reader sees one; the ordinary one keeps all of its lines. It has no colours."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        super().__init__()
        self.width, self.height = width, height
        self.is_alternate, self.has_cursor = False, True
        self.ordinary: list[str] = [""]
        self._alternate: list[str] = [""] * height
        self._row = 0

    def isatty(self) -> bool:
        return True

    @property
    def frame(self) -> list[str]:
        """The lines on the alternate screen."""
        return self._alternate

    def resize(self, width: int, height: int) -> None:
        """Cuts what is on the alternate screen, as terminals do; nothing of it is ever wrapped."""
        self.width, self.height = width, height
        self._alternate = ([line[:width] for line in self._alternate] + [""] * height)[:height]

    def write(self, text: str) -> int:
        for match in TOKEN.finditer(text):
            private, number, command, newline, plain, _ = match.groups()
            if command is not None:
                self._control(private, number, command)
            elif newline is not None:
                self._newline()
            elif plain is not None:
                self._print(plain)
        return len(text)

    def _control(self, private: str, number: str, command: str) -> None:
        if private and number == "1049":
            self.is_alternate = command == "h"
            self._alternate = [""] * self.height
        elif private and number == "25":
            self.has_cursor = command == "h"
        elif command == "H":
            self._row = int(number.partition(";")[0] or 1) - 1
            if self.is_alternate and self._row < self.height:
                self._alternate[self._row] = ""  # the panel writes whole lines

    def _newline(self) -> None:
        if not self.is_alternate:
            self.ordinary.append("")
            return
        if self._row == self.height - 1:  # it scrolls: the first line is lost
            self._alternate = [*self._alternate[1:], ""]
        else:
            self._row += 1
            self._alternate[self._row] = ""

    def _print(self, plain: str) -> None:
        if self.is_alternate:
            self._alternate[min(self._row, self.height - 1)] += plain
        else:
            self.ordinary[-1] += plain

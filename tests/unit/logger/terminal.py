"""A terminal of which a test reads both screens, without colours."""

from __future__ import annotations

import io
import re

ENTER, LEAVE, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[1;1H"


class Terminal(io.StringIO):
    """Keeps what is written to it."""

    encoding = "utf-8"  # type: ignore[assignment]  # of the stream

    def isatty(self) -> bool:
        return True

    @property
    def is_alternate(self) -> bool:
        return self.getvalue().rfind(ENTER) > self.getvalue().rfind(LEAVE)

    @property
    def has_cursor(self) -> bool:
        return self.getvalue().rfind("\x1b[?25l") <= self.getvalue().rfind("\x1b[?25h")

    @property
    def frame(self) -> list[str]:
        """The lines that the panel has drawn last: each frame fills the alternate screen."""
        newest = self.getvalue().rpartition(ENTER)[2].rpartition(HOME)[2]
        return [plain(line) for line in re.split(r"\x1b\[\d+;1H", newest)]  # each goes to its row

    @property
    def ordinary(self) -> str:
        """All that was written to the ordinary screen."""
        return plain(re.sub(rf"{re.escape(ENTER)}.*?({re.escape(LEAVE)}|$)", "", self.getvalue(), flags=re.DOTALL))


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)

"""A view that never ends the run: when it fails, plain lines follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

from offpolicy.logger.console import View
from offpolicy.logger.sinks import disabled


class SafeView:
    """Passes every call to `view`. When one raises, closes it and passes this call and the rest to `plain`."""

    def __init__(self, view: View, plain: View) -> None:
        self._view, self._plain = view, plain

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*values: Any) -> None:  # Any: what the method of that name takes
            if name == "set_header":
                self._plain.set_header(*values)
            try:
                getattr(self._view, name)(*values)
            except Exception as error:  # the run does not depend on its panel
                failed, self._view = self._view, self._plain
                with contextlib.suppress(Exception):  # it has failed already: as much of it as goes
                    failed.close()
                self._plain.message(disabled("the panel", error))
                getattr(self._plain, name)(*values)

        return call


def safe_view(view: View, plain: View) -> View:
    """Returns `view` with `plain` in its place from its first error on."""
    return cast("View", SafeView(view, plain))

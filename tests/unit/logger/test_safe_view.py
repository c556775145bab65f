from __future__ import annotations

from typing import Any

import pytest
from rich.text import Text

from offpolicy.logger.console import View
from offpolicy.logger.record import RunHeader
from offpolicy.logger.safe_view import SafeView
from offpolicy.types import EvalResult

CALLS: dict[str, tuple[Any, ...]] = {
    "record": ({"env_steps": 1}, None),
    "last_record": ({"env_steps": 1},),
    "status": ("starting",),
    "set_header": (RunHeader(algo="sac", env_id="X", seed=1, mode="free", total_timesteps=9),),
    "evaluation": (EvalResult(1, 2.0, 3.0, 4.0, 5),),
    "activity": ("evaluating",),
    "stopping": ("stopping",),
    "message": ("hello",),
    "tick": (),
    "finish": (Text("the end"),),
    "close": (),
}


class Recorder:
    """A view that notes its calls, and raises in one of them."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*values: Any) -> None:
            self.calls.append((name, values))
            if name == self._failing:
                raise ZeroDivisionError("a bug")

        return call


def test_every_call_of_a_view_is_passed_on() -> None:
    assert set(CALLS) == {name for name in vars(View) if not name.startswith("_")}
    panel, plain = Recorder(), Recorder()
    view = SafeView(panel, plain)
    for name, values in CALLS.items():
        getattr(view, name)(*values)
    assert panel.calls == list(CALLS.items())
    assert plain.calls == [("set_header", CALLS["set_header"])]


@pytest.mark.parametrize("name", list(CALLS))
def test_a_view_that_raises_is_closed_and_plain_lines_go_on(name: str) -> None:
    panel, plain = Recorder(name), Recorder()
    view = SafeView(panel, plain)
    getattr(view, name)(*CALLS[name])
    view.status("later")
    assert panel.calls[-1] == ("close", ())
    warning = ("message", ("warning: the panel is disabled for the rest of the run: ZeroDivisionError: a bug",))
    assert plain.calls[-3:] == [warning, (name, CALLS[name]), ("status", ("later",))]

"""The view of a notebook: one output that is written anew, messages, and where it is chosen."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.logger import panel
from offpolicy.logger.console import PlainLines
from offpolicy.logger.notebook import NotebookView, notebook_display
from offpolicy.logger.panel import open_view
from offpolicy.logger.record import RunHeader
from offpolicy.types import EvalResult

HEADER = RunHeader(algo="sac", env_id="Pendulum-v1", seed=1, mode="alternate", total_timesteps=1000)


class Outputs:
    """The outputs of a cell, each as the list of what it has shown."""

    def __init__(self) -> None:
        self.shown: list[list[dict[str, str]]] = []

    def __call__(self, obj: Any, *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        own = [obj]
        self.shown.append(own)
        return SimpleNamespace(update=lambda obj, *, raw: own.append(obj))


def test_records_share_one_output() -> None:
    outputs = Outputs()
    view = NotebookView(outputs, HEADER)
    view.status("starting: waiting for learner 0")
    view.record({"env_steps": 250.0})
    view.record({"env_steps": 500.0, "rollout/ep_rew_mean": -3.5})
    (shown,) = outputs.shown
    assert "waiting for learner 0" in shown[0]["text/plain"]
    assert '<progress value="500" max="1000"' in shown[-1]["text/html"]
    assert shown[-1]["text/plain"].startswith("50% step=500/1000 ret=-3.50")


def test_the_newest_messages_stand_below_and_are_escaped() -> None:
    outputs = Outputs()
    view = NotebookView(outputs, HEADER)
    for number in range(8):
        view.message(f"message <{number}>")
    view.evaluation(EvalResult(500, -7.0, 1.0, 200.0, 3))
    newest = outputs.shown[0][-1]
    assert "message &lt;7&gt;" in newest["text/html"]
    assert "evaluation step=500 ret=-7.00" in newest["text/plain"]
    assert "message <1>" not in newest["text/plain"]


def test_the_final_table_is_an_output_of_its_own() -> None:
    outputs = Outputs()
    NotebookView(outputs, HEADER).finish("completed after 1,000 env steps")
    assert outputs.shown == [
        [
            {
                "text/html": "<pre>completed after 1,000 env steps</pre>",
                "text/plain": "completed after 1,000 env steps",
            }
        ]
    ]


def modules(shell: type | None, display: object = None) -> dict[str, object]:
    get = SimpleNamespace(get_ipython=lambda: None if shell is None else shell())
    return {"IPython": get, "IPython.display": SimpleNamespace(display=display)}


def test_only_a_kernel_is_a_notebook() -> None:
    kernel, terminal = type("ZMQInteractiveShell", (), {}), type("TerminalInteractiveShell", (), {})
    assert notebook_display({}) is None
    assert notebook_display(modules(None)) is None
    assert notebook_display(modules(terminal, "shown")) is None
    assert notebook_display(modules(kernel, "shown")) == "shown"


def test_a_notebook_view_is_opened_unless_the_panel_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = Outputs()
    monkeypatch.setattr(panel, "notebook_display", lambda: outputs)
    stream = io.StringIO()
    assert isinstance(open_view("off", stream, HEADER), PlainLines)
    open_view("auto", stream, HEADER).status("starting")
    assert len(outputs.shown) == 1


def test_a_notebook_that_fails_leaves_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(obj: object, *, raw: bool, display_id: bool) -> None:
        raise RuntimeError("no front end")

    monkeypatch.setattr(panel, "notebook_display", lambda: fail)
    stream = io.StringIO()
    open_view("auto", stream, HEADER).message("hello")
    assert "no front end" in stream.getvalue()
    assert stream.getvalue().endswith("hello\n")

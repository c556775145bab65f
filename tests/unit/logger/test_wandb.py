from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.errors import ConfigError
from offpolicy.logger import wandb as module
from offpolicy.logger.record import Record
from offpolicy.logger.wandb import WandbSink, require_login
from offpolicy.processes.child import is_held

EVALUATION: Record = {"eval/env_steps": 8, "eval/mean_reward": -5.0}


class Run:
    """Keeps what is logged to a W&B run."""

    def __init__(self) -> None:
        self.logged: list[Record] = []
        self.metrics: list[tuple[str, str | None]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.uploaded: threading.Event | None = None

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, record: Record) -> None:
        self.logged.append(record)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code
        if self.uploaded:
            self.uploaded.wait(20.0)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for the package: no process, no network."""
    fake = SimpleNamespace(run=Run(), inits=[], is_logged_in=True)

    def init(**arguments: Any) -> Run:
        fake.inits.append(arguments)
        return fake.run  # type: ignore[no-any-return]  # a namespace has no types

    fake.init, fake.Settings = init, lambda **settings: settings
    fake.login = lambda prompt, verify: fake.is_logged_in
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_a_resumed_run_goes_on_online_and_is_another_one_of_its_group_offline(
    tmp_path: Path, wandb: SimpleNamespace
) -> None:
    """W&B resumes nothing offline, and `wandb sync` of the second start replaced the curves of the first."""
    for mode in ("online", "online", "offline", "offline"):
        WandbSink(tmp_path, {}, "offpolicy", mode, print).close()
    run_id = (tmp_path / "wandb_id").read_text().strip()
    online, offline = wandb.inits[:2], wandb.inits[2:]
    found = [[each[name] for name in ("id", "resume", "mode", "project")] for each in online]
    assert found == [[run_id, "allow", "online", "offpolicy"]] * 2
    assert [[each[name] for name in ("group", "resume", "mode")] for each in offline] == [[run_id, None, "offline"]] * 2
    assert len({run_id, *(each["id"] for each in offline)}) == 3
    assert all(each["id"].startswith(f"{run_id}-") for each in offline)


def test_wandb_gets_the_configuration_the_run_directory_and_each_evaluation_once(
    tmp_path: Path, wandb: SimpleNamespace
) -> None:
    sink = WandbSink(tmp_path, {"algo": {"gamma": 0.99}}, "offpolicy", "offline", print)
    assert (wandb.inits[0]["config"], wandb.inits[0]["dir"]) == ({"algo": {"gamma": 0.99}}, str(tmp_path))
    assert wandb.run.metrics[:2] == [("env_steps", None), ("*", "env_steps")]
    sink.write({"env_steps": 10, **EVALUATION})
    sink.write({"env_steps": 12, **EVALUATION})
    assert wandb.run.logged == [{"env_steps": 10, **EVALUATION}, {"env_steps": 12}]


def test_the_run_finishes_with_the_exit_code(tmp_path: Path, wandb: SimpleNamespace) -> None:
    sink = WandbSink(tmp_path, {}, "offpolicy", "offline", print)
    final = {"status": "failed", "exit_code": 65, "reason": "NaN", "eval": {}, "rates": {}, "bottleneck": {}}
    sink.finish({**final, "timing": {}})
    sink.close()
    assert wandb.run.exit_code == 65
    assert wandb.run.summary == {"final": final}


def test_online_without_a_login_is_refused_without_a_prompt(tmp_path: Path, wandb: SimpleNamespace) -> None:
    wandb.is_logged_in = False
    with pytest.raises(ConfigError, match="wandb login"):
        require_login()
    with pytest.raises(ConfigError, match="log.wandb"):
        WandbSink(tmp_path, {}, "offpolicy", "online", print)
    assert wandb.inits == []


def test_an_upload_that_does_not_end_is_left_and_said_with_its_files(
    tmp_path: Path, wandb: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network W&B waits for ever, after the supervisor has left, and swallows every signal but SIGKILL."""
    released, warnings = threading.Event(), list[str]()
    monkeypatch.setattr(module, "FINISH_S", 0.1)
    wandb.run.uploaded = released
    run_dir = tmp_path / "my runs"
    run_dir.mkdir()
    sink = WandbSink(run_dir, {}, "offpolicy", "online", warnings.append)
    sink.close()
    run_id = (run_dir / "wandb_id").read_text().strip()
    (warning,) = warnings
    assert f"`wandb sync '{run_dir}/wandb'/*-{run_id}` uploads the rest" in warning
    assert is_held()  # the process leaves without W&B's own wait at its end
    released.set()

"""`train` and `configure`: what they accept, what they raise, and whose signal handlers are there afterwards."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offpolicy.api import training
from offpolicy.api.runs import TrainedRun
from offpolicy.api.training import configure, train
from offpolicy.config.overrides import load_config
from offpolicy.errors import ConfigError, EnvFailure, Interrupted, NumericsError
from offpolicy.logger.callbacks import Callback
from offpolicy.processes.signals import interrupts_exit
from offpolicy.processes.supervisor import Failure


class Runner:
    """Records what it is asked to train, in place of the runners, and ends as it was made to."""

    def __init__(self, code: int = 0, cause: str = "", act: Any = None) -> None:
        self.asked: list[Any] = []
        self._act = act
        failure = Failure("learner", 0, 1, 5, code, cause) if cause else None
        self._ended = SimpleNamespace(code=code, path=Path("runs/mine"), failure=failure)

    def train_run(self, config: Any, callbacks: Any) -> SimpleNamespace:
        self.asked.append(config)
        self.callbacks = callbacks
        if self._act is not None:
            self._act()
        return self._ended


def run_with(monkeypatch: pytest.MonkeyPatch, runner: Runner, *words: Any, **values: Any) -> Any:
    monkeypatch.setattr(training, "train_module", lambda: runner)
    return train(*words, **values)


def test_words_and_values_are_those_of_the_command_line() -> None:
    made = configure("algo=td3", "env.num_envs=2", env="cartpole", algo="sac", seed=3, replay={"capacity": 500_000})
    same = load_config(["algo=sac", "env=cartpole", "env.num_envs=2", "seed=3", "replay.capacity=500000"])
    assert made == same


def test_paths_runs_and_values_of_numpy_are_values() -> None:
    given: list[tuple[str, Any, Any]] = [
        ("run_dir", Path("runs/a"), "runs/a"), ("init_from", TrainedRun(Path("runs/one")), "runs/one"),
        ("total_timesteps", np.int64(5000), 5000), ("algo.normalize_obs", np.True_, True),
        ("algo.hidden_dims", np.array([16, 16]), [16, 16]),
        ("env.kwargs", {"a": {"b": (Path("x"), np.zeros(2))}}, {"a": {"b": ["x", [0.0, 0.0]]}}),
    ]  # fmt: skip
    for key, value, written in given:
        assert configure(**{key: value}) == configure(**{key: written})


def test_a_source_that_names_no_run_is_refused() -> None:
    """An unset variable of a program, None, was taken for a run whose name begins so."""
    for given in (None, True, ["runs/one"]):
        with pytest.raises(ConfigError, match="config: got .*, allowed a run or its config.yaml"):
            configure(config=given)


def test_every_problem_of_words_and_values_is_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        configure("algo.gama=1", learning_rate=1e-3, seed=-1)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["learning_rate", "algo.gama", "seed"]


def test_train_takes_a_configuration_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, config = Runner(), configure(seed=9)
    run = run_with(monkeypatch, runner, config)
    assert runner.asked == [config]
    assert run.run_dir == Path("runs/mine").absolute()
    with pytest.raises(ConfigError, match="allowed one of both"):
        run_with(monkeypatch, runner, config, seed=3)


def test_what_is_no_word_is_refused_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, allowed = Runner(), 'words such as "algo=td3" or keyword arguments'
    for given, kind in (({"algo": "td3"}, "dict"), (Path("exp.yaml"), "PosixPath")):
        with pytest.raises(ConfigError) as caught:
            run_with(monkeypatch, runner, "seed=3", given)
        assert caught.value.problems == (f"train: got a {kind}, allowed a RunConfig, {allowed}",)
        with pytest.raises(ConfigError) as caught:
            configure("seed=3", given)  # type: ignore[arg-type]  # what is refused
        assert caught.value.problems == (f"configure: got a {kind}, allowed {allowed}",)
    assert runner.asked == []


@pytest.mark.promise("python")
def test_a_failed_run_raises_the_error_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvFailure, match=r"the door is stuck\n.*runs/mine/train.log"):
        run_with(monkeypatch, Runner(1, "EnvFailure: the door is stuck"))
    with pytest.raises(NumericsError, match="the loss is NaN"):
        run_with(monkeypatch, Runner(65, "the loss is NaN"))


def test_an_interrupted_run_raises_an_interrupt_that_names_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (130, 143):
        with pytest.raises(Interrupted, match="offpolicy.TrainedRun.read") as caught:
            run_with(monkeypatch, Runner(code))
        assert isinstance(caught.value, KeyboardInterrupt)
        assert (caught.value.run_dir, caught.value.exit_code) == (Path("runs/mine").absolute(), code)


def test_ctrl_c_before_the_processes_start_does_not_end_the_callers_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> None:
        with interrupts_exit():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_with(monkeypatch, Runner(act=start))


def test_the_callers_handlers_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = (signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]

    def change() -> None:
        for number in numbers:
            signal.signal(number, lambda *_: None)

    run_with(monkeypatch, Runner(act=change))
    assert [signal.getsignal(number) for number in numbers] == before


def test_another_thread_is_refused() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="got another thread, allowed the main thread"):
        pool.submit(train).result()


class Kept(Callback):
    """Does nothing."""


def test_callbacks_are_objects_or_names_and_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, own = Runner(), Kept()
    run_with(monkeypatch, runner, callbacks=[own, f"{Runner.__module__}:Kept"])
    assert runner.callbacks[0] is own
    assert type(runner.callbacks[1]).__name__ == "Kept"
    with pytest.raises(ConfigError, match="which has no on_record"):
        run_with(monkeypatch, Runner(), callbacks=[object()])

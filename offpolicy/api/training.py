"""`offpolicy.train`: the run of `offpolicy train`, started and waited for by a Python program or a notebook."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from offpolicy.api.runs import TrainedRun, kind, plain_value
from offpolicy.commands.train import train_module
from offpolicy.commands.trust import check_source
from offpolicy.config.overrides import as_override, group_options, load_config
from offpolicy.config.parsing import nested
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.launch.outcome import require_completed
from offpolicy.logger.callbacks import Callback, checked, load_callback
from offpolicy.output import open_descriptors
from offpolicy.processes import child
from offpolicy.processes.signals import SAVE_SIGNAL

ALLOWED = 'words such as "algo=td3" or keyword arguments'


def configure(*overrides: str, trust: bool = False, **values: Any) -> RunConfig:  # Any: checked with all others
    """Returns the checked configuration of a run; nothing is started.

    `overrides` are words as `offpolicy train` takes them: "algo=td3", "env.num_envs=8". `values` come after them:
    `total_timesteps=5000`, `algo="td3"` for a group, and mappings for sections, such as `replay={"capacity": 10_000}`.
    A mapping may have whole keys, as in `configure(**{"algo.actor_lr": 1e-3})`. A value may be a path, a `TrainedRun`
    or one of NumPy's. `trust` is that of `offpolicy train --trust`.
    Raises `ConfigError` with every problem.
    """
    _refuse("configure", [word for word in overrides if not isinstance(word, str)], ALLOWED)
    options, values = group_options(), plain_value(values)
    is_choice = {key: key in options and not isinstance(value, Mapping) for key, value in values.items()}
    words = [*overrides, *(f"{key}={as_override(value)}" for key, value in values.items() if is_choice[key])]
    given = nested({key: value for key, value in values.items() if not is_choice[key]})
    if "config" in given:
        source = given.pop("config")
        if isinstance(source, bool) or not isinstance(source, str | int):  # as text, None would be a run called so
            raise ConfigError(f"config: got {source!r}, allowed a run or its config.yaml, such as config='latest'")
        words.append(f"config={as_override(str(source))}")
    check_source(words, is_trusted=trust)
    return load_config(words, given)


def _refuse(call: str, odd: Sequence[object], allowed: str) -> None:
    """Raises `ConfigError` where there is something odd: a run without it would be another one."""
    if odd:
        raise ConfigError([f"{call}: got a {type(each).__name__}, allowed {allowed}" for each in odd])


def train(
    *overrides: str | RunConfig,
    callbacks: Sequence[Callback | str] | None = (),
    trust: bool = False,
    **values: Any,  # Any: checked with all others
) -> TrainedRun:
    """Trains, in other processes, and returns the run at its end: `train("algo=sac", "env=pendulum", seed=3)`.

    Takes what `configure` takes, or the `RunConfig` that it returns. `callbacks` are objects, see `offpolicy.Callback`,
    or `module:Name`, called beside those of the configuration with what the run reports. In a notebook a line of
    progress is shown. Ctrl-C (the stop button) ends the run as in the terminal: it saves a checkpoint, and then
    `Interrupted` is raised, a `KeyboardInterrupt` that names the run directory. Raises `ConfigError` before any process
    starts, and for a run that has failed the error of its process. It has to be called from the main thread, which gets
    the signals.
    """
    if child.is_child:
        raise ConfigError(f"train: called by a module that a process of a run imports; {child.MAIN_GUARD}")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("train: got another thread, allowed the main thread: only that one gets Ctrl-C")
    _refuse("train", [word for word in overrides if not isinstance(word, str | RunConfig)], f"a RunConfig, {ALLOWED}")
    configs = [word for word in overrides if isinstance(word, RunConfig)]
    if configs and (len(overrides) > 1 or values):
        raise ConfigError("train: got a configuration and overrides, allowed one of both; configure takes overrides")
    if callbacks is not None and (isinstance(callbacks, str) or not isinstance(callbacks, Sequence)):
        raise ConfigError(f"callbacks: got {kind(callbacks)}, allowed a list, callbacks=[...]")
    open_descriptors()
    with _signals_of_caller():
        words = [word for word in overrides if isinstance(word, str)]
        config = configs[0] if configs else configure(*words, trust=trust, **values)
        own = [load_callback(one) if isinstance(one, str) else checked(one) for one in callbacks or ()]
        ended = train_module().train_run(config, own)
    require_completed(ended.code, ended.path, ended.failure)
    return TrainedRun(ended.path.absolute())


@contextlib.contextmanager
def _signals_of_caller() -> Iterator[None]:
    """Gives the caller's handlers back at the end, and lets a Ctrl-C before the processes start raise.

    The command ends its process then, with what it has started: `start.interrupts_exit`. A caller's process must live.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, SAVE_SIGNAL)}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise_interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not installed by Python, and cannot be
                signal.signal(number, handler)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

"""The study of a sweep, which Optuna keeps in a SQLite file: what to try next, what to prune, what was best.

Needs optuna, which is an extra: `pip install 'offpolicy[sweep]'`.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import optuna
except ImportError:
    from offpolicy.errors import ConfigError

    raise ConfigError("sweep: needs optuna; type pip install 'offpolicy[sweep]'") from None
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import StorageInternalError
from optuna.trial import Trial, TrialState
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from offpolicy.analysis.space import Parameter, Space, Value, is_same, words_of
from offpolicy.errors import ConfigError, SaveError

DATABASE, NAME, DIGEST, WHY = "study.db", "sweep", "digest", "why"
BUSY_S = 60.0  # seconds to wait for another process that writes the study
STARTUP_TRIALS = 4  # whole trials before one is pruned
Values = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Row:
    """A trial as the table shows it."""

    number: int
    values: Values
    state: str  # complete, pruned, fail, running
    mean: float | None  # of the last evaluation, over the seeds
    why: str = ""


@contextlib.contextmanager
def database_errors(directory: Path) -> Iterator[None]:
    """Raises `SaveError` for what the disk, or another program, does to the file of the study in the block."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = cause.orig if isinstance(cause, DBAPIError) else cause or error
        raise SaveError(
            f"{directory / DATABASE}: {reason}; the trials so far are in the runs' directories, and in that file as far"
            " as it can be read"
        ) from error


class SweepStudy:
    """Optuna's study in the directory of a sweep, new or continued. Its calls raise as `database_errors`."""

    def __init__(self, directory: Path, space: Space, words: Sequence[str], *, prunes: bool) -> None:
        """Opens the study. Raises `ConfigError` if the file is none, or that of another space or command."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(
                study_name=NAME, storage=_storage(directory / DATABASE), direction="maximize", load_if_exists=True
            )
        except DBAPIError as error:
            file = directory / DATABASE
            raise ConfigError(f"--out: {file} cannot be opened: {error.orig}; write another --out") from error
        digest = space.digest(words)
        known = self._study.user_attrs.get(DIGEST)
        if known not in (None, digest):
            raise ConfigError(f"--out: {directory} holds a sweep of another space or command; write another --out")
        self._study.set_user_attr(DIGEST, digest)
        # Another seed for each start: the same one would propose again what was tried first.
        self._study.sampler = optuna.samplers.TPESampler(seed=len(self._study.trials), constant_liar=True)
        # A trial is never pruned at its first evaluation.
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1)
        self._study.pruner = pruner if prunes else optuna.pruners.NopPruner()
        self._by_word = {each.key: {_word(value): value for value in each.values} for each in space.parameters}
        self._distributions = {each.key: _distribution(each) for each in space.parameters}

    def suggest_first(self, values: Values) -> None:
        """Makes these values the first trial of a new study."""
        self._study.enqueue_trial({key: self._choice(key, value) for key, value in values.items()}, skip_if_exists=True)

    def _choice(self, key: str, value: Value) -> Value:
        """Returns a value as Optuna has it: of some, the word of the one in the space, which may be 1 for 1.0."""
        words = self._by_word[key]
        own = [word for word, each in words.items() if is_same(each, value)]
        return value if not own else _word(value) if _word(value) in own else own[0]

    @property
    def num_trials(self) -> int:
        """Trials that were begun, also those that failed."""
        return sum(trial.state != TrialState.WAITING for trial in self._study.trials)

    def ask(self) -> Trial:
        """Begins the next trial."""
        return self._study.ask(self._distributions)

    def begun(self) -> list[Trial]:
        """Returns the trials that an earlier process began and did not end."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        trials = [Trial(self._study, trial._trial_id) for trial in running]
        for trial in trials:
            for key, distribution in self._distributions.items():
                trial._suggest(key, distribution)  # the process may have been killed before it had proposed them all
        return trials

    def num_reports(self, trial: Trial) -> int:
        """Returns the evaluations of a trial that are known, also from an earlier process."""
        return len(self._study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def values_of(self, params: Mapping[str, Any]) -> dict[str, Value]:  # Any: Optuna's parameters
        """Returns the values of the configuration behind Optuna's parameters."""
        return {key: self._by_word[key].get(value, value) for key, value in params.items()}

    def complete(self, trial: Trial, value: float) -> None:
        """Ends a trial with its result."""
        self._study.tell(trial, value)

    def prune(self, trial: Trial) -> None:
        """Ends a trial that is worse than the others at the same point."""
        self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: Trial, why: str) -> None:
        """Ends a trial that has no result."""
        trial.set_user_attr(WHY, why)
        self._study.tell(trial, state=TrialState.FAIL)

    def rows(self) -> list[Row]:
        """Returns all trials that were begun, the best first, then those without a result."""
        found = [
            Row(
                trial.number,
                self.values_of(trial.params),
                trial.state.name.lower(),
                trial.value if trial.state == TrialState.COMPLETE else _last(trial.intermediate_values),
                str(trial.user_attrs.get(WHY, "")),
            )
            for trial in self._study.trials
            if trial.state != TrialState.WAITING
        ]
        return sorted(found, key=_rank)


def _storage(file: Path) -> optuna.storages.RDBStorage:
    """Returns Optuna's storage in a SQLite file. A URL would end at a question mark in its name."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(file, timeout=BUSY_S, check_same_thread=False)

    return optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": connect, "poolclass": NullPool})


def _rank(row: Row) -> tuple[bool, bool, float, int]:
    """Returns the sort key of a row: a trial without a return is no better than one with a bad one."""
    is_known = row.mean is not None and not math.isnan(row.mean)
    return row.state != "complete", not is_known, -(row.mean or 0.0) if is_known else 0.0, row.number


def _last(values: Mapping[int, float]) -> float | None:
    return values[max(values)] if values else None


def _word(value: Value) -> str:
    """Returns a value of some as the text that Optuna stores: its choices must be plain."""
    return words_of({"": value})[0][1:]


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.values:
        return CategoricalDistribution([_word(value) for value in parameter.values])
    if parameter.is_whole:
        step = 1 if parameter.step is None else int(parameter.step)
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.is_log, step=step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.is_log, step=parameter.step)

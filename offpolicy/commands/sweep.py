"""`offpolicy sweep space.yaml key=value ...`: searches for the settings that learn best, with Optuna.

A process trains one trial at a time; the same command, started again here or on another host, takes part.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shlex
import signal
import statistics
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offpolicy.errors import EXIT_OK, ConfigError, Interrupted, OffPolicyError, RunDirBusyError

try:
    import optuna
except ImportError:
    raise ConfigError("sweep: needs optuna; type pip install 'offpolicy[sweep]'") from None
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage, journal
from optuna.trial import FrozenTrial, Trial, TrialState

from offpolicy.collect.evaluations import read_results
from offpolicy.commands.options import TRUST, at_least
from offpolicy.commands.train import train_module
from offpolicy.commands.trust import check_source
from offpolicy.config.overrides import as_override, load_config, load_values
from offpolicy.config.parsing import NO_CLASSES, Parser, flatten, merge, nested
from offpolicy.config.run_files import read_values
from offpolicy.config.schema import RunConfig, specs
from offpolicy.launch.outcome import require_completed
from offpolicy.launch.run_lock import RunLock
from offpolicy.logger.callbacks import Callback
from offpolicy.logger.console import plain_console, text_table
from offpolicy.output import counted, return_text
from offpolicy.runs import TRIAL, known_summary
from offpolicy.timing.clock import Stopwatch
from offpolicy.types import EvalResult

OWN_KEYS = ("seed", "run_dir", "resume")  # set by the sweep for each run
FORM = "{low: 0.0001, high: 0.01, log: true}, {low: 1, high: 8, step: 1} or {values: [64, 128]}"
QUIET = ("log.panel=off", "log.tensorboard=false")
WHOLE_TRIALS = 4  # before one is pruned
BEGUN = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
MOST_SHOWN = 10  # trials in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the space, the words of all trials and the options of the sweep."""
    parser.add_argument("space", type=Path, help="a YAML file of keys, each with what it may be (docs/compare.md)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="what all trials have in common")
    parser.add_argument("--trials", type=at_least(1), default=20, help="settings to try, in all (default: 20)")
    parser.add_argument("--seeds", type=at_least(1), default=1, help="runs of each, with seeds 1, 2, ... (default: 1)")
    parser.add_argument("--out", type=Path, help="directory of the sweep, to go on with too (default: sweeps/<space>)")
    parser.add_argument("--no-prune", action="store_true", help="train every trial to its end")
    parser.add_argument(TRUST, action="store_true", help="import code that lies in the directory of config=RUN")


def run(arguments: argparse.Namespace) -> int:
    """Trains trials until there are as many as wanted, and prints the best overrides. Raises `ConfigError`."""
    check_source(arguments.overrides, is_trusted=arguments.trust)
    return Sweep(arguments).run()


def read_space(file: Path, given: Sequence[str] = ()) -> dict[str, BaseDistribution]:
    """Returns the distributions of a YAML file by key. `given`: keys of the command line. Raises `ConfigError`."""
    tree = read_values(file)
    parameters = tree.get("parameters")
    if len(tree) != 1 or not isinstance(parameters, dict):
        raise ConfigError(f"{file}: got {', '.join(map(str, tree))}, allowed parameters: keys, each with {FORM}")
    space = dict[str, BaseDistribution]()
    own = [key for key in given if key in {*OWN_KEYS, *parameters}]
    own += [f"{file}: parameters.{key}" for key in OWN_KEYS if key in parameters]
    problems = [f"{key}: not allowed: the sweep sets it" for key in own]
    for key, raw in parameters.items():
        try:
            with warnings.catch_warnings(action="error"):  # Optuna warns of a step that does not divide its range
                space[key] = _distribution(str(key), raw)
        except (ValueError, TypeError, AttributeError, KeyError, UserWarning) as error:
            problems.append(f"{file}: parameters.{key}: got {raw!r}, allowed {FORM}: {error}")
    if problems:
        raise ConfigError(problems)
    return space


def _distribution(key: str, raw: Any) -> BaseDistribution:  # Any: not checked yet
    """Raises `ValueError` for a key or value that a run does not take, and what Optuna raises for a bad range."""
    # YAML reads 1e-4 as a text.
    given: dict[str, Any] = {name: float(value) if isinstance(value, str) else value for name, value in raw.items()}
    ends = raw["values"] if raw.keys() == {"values"} else [given["low"], given["high"]]
    words, parser = [as_override(end) for end in ends], Parser(specs(), NO_CLASSES)
    taken = [flatten(parser.build(RunConfig, nested({key: end})).to_mapping()).get(key) for end in ends]
    if parser.problems:
        raise ValueError("; ".join(parser.problems))
    if len(set(words)) < max(len(words), 2):
        raise ValueError("two or more values are needed, each once")
    if "values" in raw:
        return CategoricalDistribution(words)  # Optuna takes no lists
    is_whole = all(isinstance(value, int) for value in (*taken, given.get("step", 1)))
    return IntDistribution(**given) if is_whole else FloatDistribution(**given)


def words_of(params: Mapping[str, object]) -> list[str]:
    """Returns the parameters of a trial as overrides: numbers, and the words of values."""
    return [f"{key}={value}" for key, value in params.items()]


class Pruner(Callback):
    """Stops the run, as SIGTERM does, once its evaluations are below the median of the other trials."""

    def __init__(self, trial: Trial, cfg: RunConfig) -> None:
        self._trial, self._cfg, self.is_hopeless = trial, cfg, False

    def on_evaluation(self, result: EvalResult) -> None:
        """Reports the evaluation to the study."""
        index = sum(each.env_steps < result.env_steps for each in read_results(Path(self._cfg.run_dir or "")))
        self._trial.report(result.mean_reward, index)
        if result.env_steps < self._cfg.total_timesteps and self._trial.should_prune():
            self.is_hopeless = True
            os.kill(os.getpid(), signal.SIGTERM)


class Sweep:
    """A process of a sweep, which shares its study with others."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Opens the study. Raises `ConfigError` for a bad space, and for a directory of another sweep."""
        self._words, self._num_trials, self._seeds = arguments.overrides, arguments.trials, arguments.seeds
        self._out: Path = arguments.out or Path("sweeps") / arguments.space.stem
        self._watch, self._console = Stopwatch(), plain_console()
        self._common = load_config(self._words).to_mapping()
        self._space = read_space(arguments.space, [word.partition("=")[0] for word in self._words])
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", "The reported value is ignored")  # of a run that was resumed
        median = optuna.pruners.MedianPruner(n_startup_trials=WHOLE_TRIALS, n_warmup_steps=1)
        pruner = optuna.pruners.NopPruner() if arguments.no_prune else median
        content = [{key: repr(each) for key, each in self._space.items()}, repr(self._common), self._seeds]
        try:
            self._out.mkdir(parents=True, exist_ok=True)
            storage = JournalStorage(journal.JournalFileBackend(str(self._out / "study.journal")))
            self._study = optuna.create_study(
                storage=storage, pruner=pruner, study_name="sweep", direction="maximize", load_if_exists=True
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"--out: {self._out} cannot be used: {error}; write another one") from error
        if self._study.user_attrs.get("content", content) != content:
            raise ConfigError(f"--out: {self._out} holds a sweep of another space or command; write another --out")
        self._study.set_user_attr("content", content)

    def run(self) -> int:
        """Trains until all processes together have begun as many trials as are wanted, and prints the result."""
        os.environ[TRIAL] = "1"
        while (begun := self._next()) is not None:
            trial, lock = begun
            try:
                self._train(trial)
            except Interrupted as stop:
                self._say(trial, f"interrupted: the same command goes on; {self._out} keeps the trials")
                return stop.exit_code
            finally:
                lock.release()
        return self._conclude()

    def _next(self) -> tuple[Trial, RunLock] | None:
        """Locks and returns the next trial: one that a killed process has left, else a new one; None at the end."""
        with (self._out / "lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            known = self._study.get_trials(deepcopy=False, states=BEGUN)
            for left in (each for each in known if each.state == TrialState.RUNNING):
                with contextlib.suppress(RunDirBusyError):
                    lock = RunLock(self._directory(left))
                    self._say(left, "goes on")
                    return Trial(self._study, left._trial_id), lock
            if len(known) >= self._num_trials:
                return None
            if not known:
                self._study.enqueue_trial(self._defaults())
            # Each proposal has its own seed: two processes with one seed would begin with the same values.
            self._study.sampler = optuna.samplers.TPESampler(seed=len(known), constant_liar=True)
            trial = self._study.ask(dict(self._space))
            return trial, RunLock(self._directory(trial))

    def _defaults(self) -> dict[str, Any]:
        """Returns the values of a run without the sweep, as far as the space has them."""
        values, found = flatten(self._common), dict[str, Any]()
        for key, each in self._space.items():
            value = as_override(values.get(key)) if isinstance(each, CategoricalDistribution) else values.get(key)
            with contextlib.suppress(ValueError, TypeError):  # the space does not have it
                if each._contains(each.to_internal_repr(value)):
                    found[key] = value
        return found

    def _directory(self, trial: Trial | FrozenTrial) -> Path:
        found = self._out / f"trial-{trial.number:03d}"
        found.mkdir(exist_ok=True)
        return found

    def _train(self, trial: Trial) -> None:
        """Trains all seeds of a trial and ends it. Raises its error where no trial has gone well."""
        try:
            returns = [self._final_return(trial, index) for index in range(self._seeds)]
        except optuna.TrialPruned:
            self._study.tell(trial, state=TrialState.PRUNED)
            self._say(trial, "pruned")
        except OffPolicyError as error:
            trial.set_user_attr("why", str(error))
            self._study.tell(trial, state=TrialState.FAIL)
            self._say(trial, f"failed: {error}")
            if all(each.state == TrialState.FAIL for each in self._study.get_trials(states=BEGUN)):
                raise
        else:
            mean, *each = (return_text(value, ",") for value in (statistics.mean(returns), *returns))
            self._study.tell(trial, statistics.mean(returns))
            self._say(trial, f"return {mean} ({', '.join(each)})")

    def _final_return(self, trial: Trial, index: int) -> float:
        """Returns the mean return of the final evaluation of one seed. Raises `TrialPruned` or `OffPolicyError`."""
        directory, words = self._directory(trial) / f"seed-{index}", words_of(trial.params)
        directory.mkdir(exist_ok=True)
        own = {"seed": self._common["seed"] + index, "run_dir": str(directory / "run")}
        self._say(trial, f"seed {own['seed']} starts: {shlex.join(words)}")
        cfg = RunConfig.from_mapping(merge(self._common, load_values([*QUIET, *words]) | own))
        pruner = Pruner(trial, cfg)  # type: ignore[abstract]  # what it leaves out does nothing
        with (directory / "out").open("a") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            ended = train_module().train_run(cfg, [] if index else [pruner])
        if pruner.is_hopeless:
            raise optuna.TrialPruned
        require_completed(ended.code, ended.path, ended.failure)
        found = flatten(known_summary(ended.path)).get("eval.mean_reward")
        if found is None:
            raise OffPolicyError(f"{ended.path}: the final evaluation has no finite return")
        return float(found)

    def _say(self, trial: Trial | FrozenTrial, text: str) -> None:
        self._console.print(f"{self._watch.elapsed_s():5.0f} s  trial {trial.number}: {text}", soft_wrap=True)

    def _conclude(self) -> int:
        """Prints the trials, the best first, and the command of the best."""
        trials = self._study.get_trials()
        trials.sort(key=lambda each: (each.state != TrialState.COMPLETE, -(each.value or 0.0)))
        table = text_table("trial", "return", "state", "values", left=("state", "values"))
        table.title = f"mean return of {counted(self._seeds, 'seed')}"
        for each in trials[:MOST_SHOWN]:
            words = [*words_of(each.params), each.user_attrs.get("why", "")]
            table.add_row(str(each.number), return_text(each.value, ","), each.state.name.lower(), " ".join(words))
        self._console.print("", table)
        best = trials[0]
        if best.state != TrialState.COMPLETE:
            raise OffPolicyError(f"no trial was completed; {self._out} has what they wrote")
        self._console.print(f"best        trial {best.number}, return {return_text(best.value, ',')}")
        self._console.print(shlex.join(["offpolicy", "train", *self._words, *words_of(best.params)]), soft_wrap=True)
        return EXIT_OK

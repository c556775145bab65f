"""`offpolicy sweep space.yaml key=value ...`: many runs in parallel that search for the settings that learn best."""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from offpolicy.analysis.space import OWN_KEYS, Parameter, Space, Value, read_space, words_of
from offpolicy.collect.evaluations import read_scores
from offpolicy.commands.compare import compare
from offpolicy.commands.jobs import RUN, Job, Launcher, LocalLauncher, NotSubmitted, SlurmLauncher, check_slurm
from offpolicy.commands.sweep_study import Row, SweepStudy, database_errors
from offpolicy.config.overrides import as_override, config_file, load_config, parse_overrides
from offpolicy.config.parsing import flatten, is_within, merge, nested
from offpolicy.config.schema import RunConfig
from offpolicy.errors import EXIT_OK, ConfigError, OffPolicyError
from offpolicy.files import atomic_write
from offpolicy.launch.preflight import preflight
from offpolicy.launch.run_lock import RunLock
from offpolicy.logger.console import plain_console
from offpolicy.logger.summary import known_summary
from offpolicy.machine import num_usable_cores
from offpolicy.number_text import counted, return_text
from offpolicy.run_names import LATEST
from offpolicy.start import interrupted_code, stops_interrupt
from offpolicy.timing.clock import Stopwatch

SOURCE = "source.yaml"  # the copy of what `config=` names; a `config.yaml` would make the directory a run
EPISODES = "eval.episodes"
NO_EPISODES = f"{EPISODES}: got 0, allowed 1 or more in a sweep: the final evaluation decides"
QUIET = ("log.panel=off", "log.tensorboard=false")
MOST_SHOWN = 10  # trials in the table
MOST_REFUSED = 3  # jobs in a row that SLURM does not take, each of which costs a trial


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The options of the command."""

    trials: int
    seeds: int
    jobs: int | None  # runs at once; None: one per core, with slurm all seeds of two trials
    out: Path | None  # None: sweeps/<name of the file>
    launcher: str
    sbatch: str
    prunes: bool


@dataclass(slots=True)
class ActiveTrial:
    """A trial whose runs are going on. `jobs` holds one entry per seed that was started."""

    trial: Any  # an Optuna trial
    values: Mapping[str, Value]
    directory: Path
    num_seeds: int
    jobs: dict[int, Job] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    num_reported: int = 0

    @property
    def next_seed(self) -> int | None:
        """The index of the next seed to start; None if all were started."""
        return len(self.jobs) if len(self.jobs) < self.num_seeds else None

    @property
    def running(self) -> dict[int, Job]:
        """The runs that were started and are not known to have ended, by seed."""
        return {seed: job for seed, job in self.jobs.items() if seed not in self.codes}

    def run(self, seed: int) -> Path:
        """Returns the directory of the run of a seed."""
        return self.directory / f"seed-{seed}" / RUN


def sweep(file: Path, words: Sequence[str], options: SweepOptions) -> int:
    """Runs the trials, or goes on with those of an earlier call, and prints the best overrides.

    Raises `ConfigError` before any run, `OffPolicyError` where a trial fails before any has gone well.
    """
    space = read_space(file)
    cfg = check_sweep(space, words, options)
    preflight(cfg, is_elsewhere=options.launcher == "slurm")
    if options.launcher == "slurm":
        check_slurm()
    out = options.out or Path("sweeps") / file.stem
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be made: {error.strerror}; write another one") from error
    lock = RunLock(out)
    try:
        words = with_kept_source(words, out)
        with database_errors(out), stops_interrupt():
            common = [*_without_directory(words), f"seeds={options.seeds}"]
            study = SweepStudy(out, space, common, prunes=options.prunes)
            default = _default(space, cfg)
            if all(each.key in default and each.holds(default[each.key]) for each in space.parameters):
                study.suggest_first(default)
            return Sweep(study, cfg, words, options, out).run()
    finally:
        lock.release()


def with_kept_source(words: Sequence[str], out: Path) -> list[str]:
    """Returns the words with `config=` naming a copy in the sweep's directory: `latest` may be another run by then.

    Raises `ConfigError` if the directory holds a copy of another configuration.
    """
    file, _ = config_file(words)
    if file is None:
        return list(words)
    text, kept = file.read_text(), (out / SOURCE).resolve()
    if not kept.exists():
        atomic_write(kept, text, durable=False)
    elif kept.read_text() != text:
        again = shlex.quote(f"config={as_override(str(kept))}")
        raise ConfigError(f"config: {file} is not what this sweep began with; write {again}, or another --out")
    return [*(word for word in words if not word.startswith("config=")), f"config={as_override(str(kept))}"]


def _without_directory(words: Sequence[str]) -> list[str]:
    """Returns the words without the directory of `SOURCE`, which is the sweep's: that may be moved."""
    return [f"config={SOURCE}" if word.startswith("config=") else word for word in words]


def _default(space: Space, cfg: RunConfig) -> dict[str, Value]:
    """Returns the values without a sweep; an argument that the environment is not given has none."""
    values = flatten(cfg.to_mapping())
    return {each.key: _plain(values[each.key]) for each in space.parameters if each.key in values}


def _plain(value: Value) -> Value:
    return tuple(value) if isinstance(value, list) else value


def check_sweep(space: Space, words: Sequence[str], options: SweepOptions) -> RunConfig:
    """Returns the configuration that all trials have in common. Raises `ConfigError` with every problem."""
    given = parse_overrides(words)
    searched = [each.key for each in space.parameters]
    problems = [
        f"{key}: given on the command line, not allowed in a sweep, which sets it for each run"
        for key in flatten(given.values)
        if key in OWN_KEYS
    ]
    problems += [
        f"{key}: given on the command line, not allowed: the space searches {'it' if key == other else other}"
        for key in flatten(given.values)
        for other in searched
        if is_within(key, (other,)) or is_within(other, (key,))
    ]
    problems += _sbatch_problems(options)
    extremes = {each.key: each.extremes for each in space.parameters}
    if 0 in extremes.get(EPISODES, ()):
        problems.append(NO_EPISODES)
    problems += [
        f"{key}: got {value!r}, allowed the name of a run in a sweep: {LATEST} may be another one when it goes on"
        for key in ("init_from", "teacher")
        for value in extremes.get(key, (given.values.get(key),))
        if isinstance(value, str) and Path(value).name == LATEST
    ]
    try:
        cfg = _common(space, words)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if cfg.eval.episodes == 0 and EPISODES not in extremes:
        problems.append(NO_EPISODES)
    if not problems:
        problems = [problem for each in space.parameters if (problem := _refused_always(cfg, space, each))]
    if problems:
        raise ConfigError(problems)
    return cfg


def _refused_always(cfg: RunConfig, space: Space, parameter: Parameter) -> str:
    """Returns why a parameter cannot be used with any value; empty if one end of it can.

    Rules that join keys refuse some values only beside others. It counts as usable beside the values without a sweep,
    beside an end of another parameter, and beside the first or the last ends of all: a trial that is refused costs
    little, a space that is refused cannot be searched.
    """
    others = [each for each in space.parameters if each is not parameter]
    ends = [{each.key: each.extremes[end] for each in others} for end in (0, -1)]
    beside = [{}, *({each.key: value} for each in others for value in each.extremes), *ends]
    tried = ({**values, parameter.key: value} for value in parameter.extremes for values in beside)
    if any(not _refusal(cfg, values) for values in tried):
        return ""
    return _refusal(cfg, {parameter.key: parameter.extremes[0]})


def _sbatch_problems(options: SweepOptions) -> list[str]:
    if options.sbatch and options.launcher != "slurm":
        return [f"--sbatch: got {options.sbatch!r}, allowed with --launcher slurm: all runs would be on this machine"]
    try:
        shlex.split(options.sbatch)
    except ValueError as error:
        return [f"--sbatch: got {options.sbatch!r}, allowed options as a shell reads them ({error})"]
    return []


def _common(space: Space, words: Sequence[str]) -> RunConfig:
    """Returns the configuration without searched values, or with one end of each where it needs them."""
    refusals = []
    for end in (None, 0, -1):
        values = {} if end is None else {each.key: each.extremes[end] for each in space.parameters}
        try:
            return load_config([*words, *words_of(values)])
        except ConfigError as error:
            refusals.append(error)
    raise refusals[0]


def _with(cfg: RunConfig, values: Mapping[str, Value]) -> RunConfig:
    """Returns the configuration with other values. Raises `ConfigError`."""
    return RunConfig.from_mapping(merge(cfg.to_mapping(), nested(values)))


def _refusal(cfg: RunConfig, values: Mapping[str, Value]) -> str:
    """Returns why values are refused; empty if they are not."""
    try:
        _with(cfg, values)
    except ConfigError as error:
        return error.problems[0]
    return ""


class Sweep:
    """The loop of a sweep: fills free places with runs, reads their evaluations, and ends trials."""

    def __init__(
        self, study: SweepStudy, cfg: RunConfig, words: Sequence[str], options: SweepOptions, out: Path
    ) -> None:
        self._study, self._cfg, self._options, self._out = study, cfg, options, out
        self._given, self._words = words, [*words, *QUIET]
        slurm = options.launcher == "slurm"
        self._launcher: Launcher = SlurmLauncher(shlex.split(options.sbatch)) if slurm else LocalLauncher()
        cores = num_usable_cores()
        self.num_jobs = options.jobs or (2 * options.seeds if slurm else cores)
        if not slurm:  # nodes of a cluster have cores of their own
            given = flatten(parse_overrides(words).values)
            shares = {"threads.learner": max(cores // self.num_jobs, 1), "threads.collector": 1}
            self._words += [f"{key}={share}" for key, share in shares.items() if key not in given]
        self._active: list[ActiveTrial] = []
        self._num_refused = 0  # jobs in a row that SLURM did not take although none of ours ran
        self._has_to_wait = False  # the last job was not taken while others of ours ran
        self._watch, self._console = Stopwatch(), plain_console()

    def run(self) -> int:
        """Runs to the end, and prints the result. Ctrl-C or SIGTERM stop the runs, which a later call continues."""
        for each in [self._activate(trial) for trial in self._study.begun()]:
            if not self._is_refused(each):
                self._active.append(each)
                self._say(each, "goes on")
        try:
            while self._fill() or self._active:
                time.sleep(self._launcher.poll_s)
                for each in list(self._active):
                    self._advance(each)
        except BaseException as error:
            self._end(*self._active)
            if not isinstance(error, KeyboardInterrupt):
                raise
            self._console.print(f"interrupted: the same command goes on; {self._out} keeps the trials", soft_wrap=True)
            return interrupted_code(error)
        return self._conclude()

    def _activate(self, trial: Any) -> ActiveTrial:  # Any: an Optuna trial
        directory = self._out / f"trial-{trial.number:03d}"
        values = self._study.values_of(trial.params)
        reported = self._study.num_reports(trial)
        return ActiveTrial(trial, values, directory, self._options.seeds, num_reported=reported)

    def _fill(self) -> bool:
        """Starts runs while there are free places; True if one was started, or was to be."""
        was_tried = False
        while sum(len(each.running) for each in self._active) < self.num_jobs:
            waiting = next((each for each in self._active if each.next_seed is not None), None)
            if waiting is None:
                if self._study.num_trials >= self._options.trials:
                    break
                waiting = self._begin()
                if waiting is None:
                    continue
            was_tried = True
            if not self._start(waiting):
                break  # the next one after a pause: SLURM may be away for a moment
        return was_tried

    def _begin(self) -> ActiveTrial | None:
        """Begins a trial; None for one whose values are refused together."""
        each = self._activate(self._study.ask())
        if self._is_refused(each):
            return None
        self._active.append(each)
        return each

    def _is_refused(self, each: ActiveTrial) -> bool:
        """True for a trial whose values are refused together, which ends it."""
        if refusal := _refusal(self._cfg, each.values):
            self._say(each, f"refused: {refusal}")
            self._study.fail(each.trial, refusal)
        return bool(refusal)

    def _start(self, each: ActiveTrial) -> bool:
        """Starts the next run of a trial. False if it is not submitted.

        While other runs go on, it is tried again: a user may have as many jobs as SLURM allows. Else that fails the
        trial. Raises `OffPolicyError` where `MOST_REFUSED` fail so in a row: SLURM would fail all that are left.
        """
        seed = len(each.jobs)
        words = [*self._words, *words_of(each.values), f"seed={self._cfg.seed + seed}"]
        try:
            each.jobs[seed] = self._launcher.start(words, each.directory / f"seed-{seed}")
        except NotSubmitted as error:
            if any(other.running for other in self._active):
                if not self._has_to_wait:
                    self._say(each, f"seed {self._cfg.seed + seed} waits until another run has ended: {error}")
                self._has_to_wait = True
                return False
            self._num_refused += 1
            self._fail(each, f"seed {self._cfg.seed + seed} was not submitted: {error}")
            if self._num_refused == MOST_REFUSED:
                raise OffPolicyError(
                    f"the sweep stops, as {MOST_REFUSED} jobs in a row were not submitted: {error}"
                ) from error
            return False
        self._num_refused, self._has_to_wait = 0, False
        self._say(each, f"seed {self._cfg.seed + seed} starts: {shlex.join(words_of(each.values))}")
        return True

    def _advance(self, each: ActiveTrial) -> None:
        """Reads what the runs of a trial have done, and ends it if they are done, failed, or worse than others."""
        for seed, job in each.jobs.items():
            code = each.codes.get(seed, job.poll())
            if code is None:
                continue
            each.codes[seed] = code
            if code != EXIT_OK:
                self._fail(each, f"seed {self._cfg.seed + seed} exited with {code}: {job.last_error()}")
                return
        if len(each.codes) == each.num_seeds:
            self._complete(each)
        elif self._is_hopeless(each):
            self._end(each)
            self._study.prune(each.trial)
            self._say(each, f"pruned after {each.num_reported} evaluations")

    def _complete(self, each: ActiveTrial) -> None:
        means = [final_return(each.run(seed)) for seed in range(each.num_seeds)]
        self._active.remove(each)
        if not all(math.isfinite(mean) for mean in means):
            self._study.fail(each.trial, "an evaluation has no finite return")
            self._say(each, "failed: an evaluation has no finite return")
            return
        self._study.complete(each.trial, statistics.mean(means))
        each_return = ", ".join(return_text(mean, ",") for mean in means)
        self._say(each, f"return {return_text(statistics.mean(means), ',')} ({each_return})")

    def _fail(self, each: ActiveTrial, why: str) -> None:
        """Ends a failed trial. Raises `OffPolicyError` where no other has gone well: it would go on for ever."""
        self._end(each)
        self._study.fail(each.trial, why)
        self._say(each, f"failed: {why}")
        if not any(row.state in ("complete", "pruned", "running") for row in self._study.rows()):
            raise OffPolicyError(f"the sweep stops, as no trial has gone well: {why}")

    def _is_hopeless(self, each: ActiveTrial) -> bool:
        """Reports new evaluations, over all seeds that were started; True if the trial should be pruned."""
        curves = [read_scores(each.run(seed)) for seed in each.jobs]
        for step in range(each.num_reported, min(map(len, curves), default=0)):
            each.trial.report(statistics.mean(curve[step].mean_reward for curve in curves), step)
            each.num_reported = step + 1
            if each.trial.should_prune():
                return True
        return False

    def _end(self, *ended: ActiveTrial) -> None:
        """Stops the runs of trials. One that cannot be stopped is named, and goes on."""
        # All are asked before one is waited for: each may take its time to save a checkpoint, and so they take it once.
        asked = [job for each in ended for seed, job in each.running.items() if self._ask_to_stop(each, seed, job)]
        for job in asked:
            job.stop()
        for each in ended:
            self._active.remove(each)

    def _ask_to_stop(self, each: ActiveTrial, seed: int, job: Job) -> bool:
        """True if a run was asked to stop."""
        try:
            job.ask_to_stop()
        except OffPolicyError as error:  # SLURM does not answer, or the job has just ended
            self._say(each, f"seed {self._cfg.seed + seed} was not stopped: {error}")
            return False
        return True

    def _say(self, each: ActiveTrial, text: str) -> None:
        self._console.print(f"{self._watch.elapsed_s():5.0f} s  trial {each.trial.number}: {text}", soft_wrap=True)

    def _conclude(self) -> int:
        """Prints the trials, the comparison of the best with the first, and the command to copy."""
        rows = self._study.rows()
        self._console.print("", sweep_table(rows, self._options.seeds))
        done = [row for row in rows if row.state == "complete"]
        if not done:
            raise OffPolicyError(f"no trial was completed; {self._out} has what they wrote")
        best, others = done[0], sorted(done[1:], key=lambda row: row.number)
        if others:
            self._compare(others[0], best)
        command = shlex.join(["offpolicy", "train", *self._given, *words_of(best.values)])
        assert best.mean is not None  # it is complete
        found = f"best        trial {best.number}, return {return_text(best.mean, ',')}"
        self._console.print(f"{found}\n{command}", soft_wrap=True)
        return EXIT_OK

    def _compare(self, first: Row, best: Row) -> None:
        """Prints `offpolicy compare` of the best trial with the first other one that was completed."""
        runs = {
            f"trial {row.number}": [
                self._out / f"trial-{row.number:03d}" / f"seed-{seed}" / RUN for seed in range(self._options.seeds)
            ]
            for row in (first, best)
        }
        try:
            compare([f"{label}={run}" for label, paths in runs.items() for run in paths])
        except ConfigError as error:  # runs too short to say anything
            self._console.print(f"not compared: {error.problems[0]}", soft_wrap=True)


def sweep_table(rows: Sequence[Row], seeds: int) -> Table:
    """Returns the best trials, a row each."""
    title = f"mean return of {counted(seeds, 'seed')}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title)
    for name in ("trial", "return", "state"):
        table.add_column(name, no_wrap=True, justify="right" if name == "return" else "left")
    table.add_column("values", overflow="fold")
    for row in rows[:MOST_SHOWN]:
        mean = "" if row.mean is None else return_text(row.mean, ",")
        text = " ".join(words_of(row.values)) + (f" ({row.why})" if row.why else "")
        table.add_row(str(row.number), mean, row.state, text)
    return table


def final_return(run: Path) -> float:
    """Returns the mean return of the last evaluation of a finished run; NaN where there is none."""
    found = known_summary(run).get("eval") or {}
    mean = found.get("mean_reward")
    return float(mean) if isinstance(mean, int | float) else math.nan

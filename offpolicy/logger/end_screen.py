"""The last screen of a run, within 80 columns and 23 rows: what happened, what came out, what to type next."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offpolicy.config.run_files import read_config, read_spec
from offpolicy.errors import ConfigError
from offpolicy.logger.console import STATUS_STYLES, cores_text, count, duration, fixed, plain_text, rate, shown_path
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.summary import COLLECTOR_NAMES, LEARNER_NAMES, RunStatus, Section
from offpolicy.output import return_text, three_digits
from offpolicy.runs import read_lines
from offpolicy.timing.phases import LearnerPhase

SPEEDS = ("steps_per_sec", "collector_capacity", "learner_capacity", "predicted_steps_per_sec")  # env steps/s
FLOPS_PER_TFLOP = 1e12
MOST_ROWS = 23  # of a terminal of 24, below which the shell writes its prompt
MOST_PHASES = 4  # of a side, beside the rest of it
LEAST_SHARE = 0.005  # of a side's wall: a phase below it is among the rest
NAME_WIDTH, WIDTH = 12, 80
LONGEST = 2 * (WIDTH - NAME_WIDTH) - 12  # characters of a line that may be wrapped once
TAIL_BYTES = 1 << 20  # end of metrics.jsonl in which records are looked for
COMPARABLE = 8  # records after its warm-up that `offpolicy compare` needs of a run
LEAST_COMMANDS = 3  # that are kept on a full screen
OPTIONAL = ("learning", "cores")  # lines that a full screen leaves out, before any command
EARLY = "stopped early"  # begins the reason of a run that its evaluations have ended


def end_screen(summary: Section, run_dir: Path) -> RenderableType:
    """Returns the last screen of a run from the mapping of `summary.json`; of a run without an update no account.

    `offpolicy explain` has what is left out for want of rows. If a part fails, there is the first line alone: a run
    that has done its work ends as it did.
    """
    try:
        return _whole_screen(summary, run_dir)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".replace("\n", " ")
        return Group(_headline(summary), Text(f"warning: the rest of the last screen failed: {cause}"))


def _whole_screen(summary: Section, run_dir: Path) -> RenderableType:
    lines = [*_outcome_lines(summary, run_dir), *(_result_lines(summary) if summary["updates"] else [])]
    account = _account(summary["timing"]) if summary["updates"] else None
    commands = list(_next_commands(summary, run_dir))
    while True:
        results = Table.grid(padding=(0, 2, 0, 0))
        results.add_column(style="cyan", no_wrap=True, min_width=NAME_WIDTH - 2)
        results.add_column(overflow="fold")
        for name, value in lines:
            short = textwrap.shorten(value, LONGEST, placeholder=" ...") if name != "directory" else value
            results.add_row(name, Text(short, "bold yellow" if name == "bottleneck" else ""))
        # A command stays whole: what is too long for the terminal is wrapped by it, and can be pasted.
        nexts = Text("\n").join(
            Text.assemble(("      " if index else "next  ", "cyan"), (command, "bold"))
            for index, command in enumerate(commands)
        )
        nexts.no_wrap, nexts.overflow = True, "ignore"
        screen: list[RenderableType] = [_headline(summary), results]
        screen += [part for part in (account, nexts if commands else None) if part is not None]
        printed = plain_text(*screen, width=WIDTH).splitlines()
        optional = [line for line in lines if line[0] in OPTIONAL]
        is_least = not optional and len(commands) <= LEAST_COMMANDS
        if is_least or sum(-(-len(line) // WIDTH) or 1 for line in printed) <= MOST_ROWS:
            return Group(*screen)
        if optional:
            lines.remove(optional[0])
        else:
            commands.pop()


def _headline(summary: Section) -> Text:
    status, steps = summary["status"], count(summary["env_steps"])
    begin = summary["from_env_step"]
    since = f" since env step {count(begin)}" if begin else ""
    done = f" after {steps} env steps, {count(summary['updates'])} updates, {duration(summary['wall_s'])}{since}"
    return Text.assemble((status, STATUS_STYLES.get(status, "bold")), done)


def _outcome_lines(summary: Section, run_dir: Path) -> Iterator[tuple[str, str]]:
    """Yields why the run ended where that is not its goal, the return, and where everything is."""
    if summary["status"] != RunStatus.COMPLETED or summary["reason"].startswith(EARLY):
        yield "because", summary["reason"].splitlines()[0] if summary["reason"] else "unknown"
    result, trained = summary["eval"], summary["rollout"]["ep_rew_mean"]
    if result["episodes"]:
        spread = f"+/- {return_text(result['std_reward'])} over {result['episodes']} episodes"
        spread = spread if result["episodes"] > 1 else "in one episode"
        yield "return", f"{return_text(result['mean_reward'])} {spread} of evaluation"
    elif trained is not None:
        yield "return", f"{return_text(trained)} in the last episodes of training; none of evaluation"
    restarts = {"all processes": summary["learner_restarts"], "environments": summary["restarts"]}
    times = {name: "once" if num == 1 else f"{count(num)} times" for name, num in restarts.items() if num}
    if times:
        yield "restarted", ", ".join(f"{name} {text}" for name, text in times.items())
    yield "directory", shown_path(run_dir)


def _result_lines(summary: Section) -> Iterator[tuple[str, str]]:
    """Yields rates, the learners' work, barrier waits of several ranks, cores, the bottleneck and the first advice."""
    rates, bottleneck = summary["rates"], summary["bottleneck"]
    speeds = [f"{METRICS[f'perf/{key}'].row} {rate(rates[key])}" for key in SPEEDS if rates[key]]
    if speeds:
        yield "rates", "  ".join(speeds) + f" env steps/s  utd {fixed(rates['utd'], 2)}"
    samples, flops = rates["samples_per_sec"], rates["flops_per_sec"]
    known = [f"{rate(samples)} samples/s"] if samples else []
    known += [f"{flops / FLOPS_PER_TFLOP:.3g} TFLOP/s while active"] if flops else []
    if known:
        yield "learning", "  ".join(known)
    learners = summary["timing"].get("learners", ())
    waits_s = [
        section["phases_s"][LearnerPhase.RANK_BARRIER]
        for section in learners
        # A rank without time after the warm-up has waited for no other one.
        if section is not None and section["wall_s"] > section["phases_s"]["warmup"]
    ]
    if waits_s:
        late = summary["timing"]["straggler"]
        who = f"rank {late['rank']} late {fixed(late['ms'], 1)} ms ({late['share']:.0%})" if late else "none is late"
        waits = "/".join(fixed(reduce(waits_s), 1) for reduce in (min, fmean, max))
        yield "ranks", f"{len(learners)}: barrier {waits} s (min/mean/max), {who}"
    if (cores := summary["cores"]) is not None:
        used = {row: seconds / cores["wall_s"] for row, seconds in cores["seconds"].items()}
        step = f"; {three_digits(cores['cpu_ms_per_env_step'])} ms of CPU per env step"
        yield "cores", cores_text(used, cores["capacity"]) + step
    where = f" ({bottleneck['phase']})" if bottleneck["phase"] else ""
    yield "bottleneck", f"{bottleneck['verdict']}{where}: {bottleneck['reason']}"
    yield from (("advice", advice) for advice in bottleneck["advice"][:1])


def _account(timing: Section) -> Table | None:
    """Returns the largest phases of both sides; None where neither was timed."""
    left = _account_rows(timing["learner"], LEARNER_NAMES)
    right = _account_rows(timing["collector"], COLLECTOR_NAMES)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"{'time':<{NAME_WIDTH - 2}}", style="cyan")
    for side in ("Learner", "Collector"):
        table.add_column(side, min_width=16)
        table.add_column("s", justify="right")
        table.add_column("%", justify="right")
    for learner, collector in zip_longest(left, right, fillvalue=("", "", "")):
        table.add_row("", *learner, *collector)
    return table if left or right else None


def _account_rows(section: Section | None, names: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns the largest phases and the rest, in seconds and in percent of the wall."""
    if section is None or section["wall_s"] <= 0.0:
        return []
    wall_s, seconds = section["wall_s"], {**section["phases_s"], "other": section["other_s"]}
    largest = sorted(seconds, key=lambda name: -seconds[name])[:MOST_PHASES]
    shown = {names[name]: seconds[name] for name in largest if seconds[name] >= LEAST_SHARE * wall_s}
    shown["the rest"] = wall_s - sum(shown.values())
    return [(name, f"{value:z.1f}", f"{100.0 * value / wall_s:z.1f}") for name, value in shown.items()]


def _next_commands(summary: Section, run_dir: Path) -> Iterator[str]:
    """Yields what to type next, most wanted first: only what this run has the files for."""
    run, status = shown_path(run_dir), summary["status"]
    saved = [int(path.name.removeprefix("step-")) for path in run_dir.glob(f"checkpoints/step-{12 * '[0-9]'}")]
    other, draws = _newest_beside(run_dir), None
    with contextlib.suppress(ConfigError):
        draws = read_spec(run_dir).draws  # None: the run has not recorded whether its environment makes pictures
    if status == RunStatus.FAILED and (run_dir / "train.log").is_file():
        yield f"less {shown_path(run_dir / 'train.log')}"
    if saved and status != RunStatus.COMPLETED:
        yield f"offpolicy resume {run}"
    if any(saved):
        yield f"offpolicy eval {run} --episodes 20"
        if draws is not False:
            yield f"offpolicy play {run} --video x.gif"
    env_id = _env_id(run_dir)  # None of a loop that calls `log_step`: its `config.yaml` may be any
    if summary["updates"] and summary["timing"]["learner"] and env_id is not None:
        yield f"offpolicy explain {run}"
    both = [] if other is None or len({env_id, _env_id(other)} - {None}) > 1 else [other, run_dir]
    if summary["updates"] and both and all(map(_can_be_compared, both)):
        yield f"offpolicy compare {' '.join(map(shown_path, both))}"
    if any(run_dir.glob("events.out.tfevents.*")):
        others = [] if other is None else [shown_path(other)]
        yield f"offpolicy tensorboard {' '.join([*others, run])}"
    if saved and status == RunStatus.COMPLETED:
        is_early = summary["reason"].startswith(EARLY)
        more = "stop.reward=null stop.patience=0" if is_early else f"total_timesteps={2 * summary['env_steps']}"
        yield f"offpolicy resume {run} {more}"


def _env_id(run_dir: Path) -> str | None:
    with contextlib.suppress(ConfigError):
        return read_config(run_dir).env.id
    return None


def _newest_beside(run_dir: Path) -> Path | None:
    """Returns the newest other run of the same directory; not `latest`, which is a link to this one."""
    with contextlib.suppress(OSError):  # a directory was deleted
        own = run_dir.absolute()
        runs = [file for file in own.parent.glob("*/metrics.jsonl") if file.parent != own]
        times_s = {file.parent: file.stat().st_mtime for file in runs if not file.parent.is_symlink()}
        return max(times_s, key=times_s.__getitem__, default=None)
    return None


def _can_be_compared(run: Path) -> bool:
    """True if a run has written enough records after its warm-up, which ends with the one of the first updates."""
    records = read_lines(run / "metrics.jsonl", TAIL_BYTES)
    return sum(bool(record.get("train/n_updates")) for record in records) > COMPARABLE

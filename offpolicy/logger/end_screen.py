"""The last screen of a run, within 80 columns and 23 rows: what happened, what came out, what to type next."""

from __future__ import annotations

import contextlib
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offpolicy.config.run_files import read_config, read_spec
from offpolicy.errors import ConfigError
from offpolicy.logger.console import (
    STATUS_STYLES,
    cores_text,
    count,
    duration,
    fixed,
    mean_return,
    rate,
    shown_path,
    significant,
)
from offpolicy.logger.metrics import METRICS
from offpolicy.logger.summary import COLLECTOR_NAMES, LEARNER_NAMES, RunStatus, Section
from offpolicy.runs import read_lines
from offpolicy.timing.phases import LearnerPhase

SPEEDS = ("steps_per_sec", "collector_capacity", "learner_capacity", "predicted_steps_per_sec")  # env steps/s
FLOPS_PER_TFLOP = 1e12
RANK_BARRIER = str(LearnerPhase.RANK_BARRIER)
MOST_ROWS = 23  # of a terminal of 24, below which the shell writes its prompt
MOST_PHASES = 4  # of a side, beside the rest of it
LEAST_SHARE = 0.005  # of a side's wall: a phase below it is among the rest
NAME_WIDTH, WIDTH = 12, 80
LONGEST = 2 * (WIDTH - NAME_WIDTH) - 12  # characters of a line that may be wrapped once
NEXT_WIDTH = len("next  ")
COMMAND_WIDTH = WIDTH - NEXT_WIDTH - len(" \\")
TAIL_BYTES = 1 << 20  # end of metrics.jsonl in which those are looked for
COMPARABLE = 8  # records after its warm-up that `offpolicy compare` needs of a run
LEAST_COMMANDS = 3  # that are kept on a full screen
OPTIONAL = ("learning", "cores")  # lines that are left out of a full screen, in this order
Line = tuple[str, str]

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
    commands = [_typed(command) for command in _next_commands(summary, run_dir)]
    room = MOST_ROWS - 1 - (account.row_count + 1 if account else 0)
    for name in OPTIONAL:
        if sum(map(_num_rows, lines)) + sum(map(_typed_rows, commands)) > room:
            lines = [line for line in lines if line[0] != name]
    while len(commands) > LEAST_COMMANDS and sum(map(_num_rows, lines)) + sum(map(_typed_rows, commands)) > room:
        commands.pop()
    results = _grid()
    for name, value in lines:
        results.add_row(name, Text(value, "bold yellow" if name == "bottleneck" else ""))
    typed = [line for command in commands for line in command]
    nexts = [_next_line("next" if index == 0 else "", line) for index, line in enumerate(typed)]
    return Group(_headline(summary), results, *([account] if account else []), *nexts)


def _headline(summary: Section) -> Text:
    status, steps = summary["status"], count(summary["env_steps"])
    wall = duration(summary["wall_s"])
    if begin := summary.get("from_env_step"):  # other loops' summaries may not say
        wall += f" since env step {count(begin)}"
    done = f" after {steps} env steps, {count(summary['updates'])} updates, {wall}"
    return Text.assemble((status, STATUS_STYLES.get(status, "bold")), done)


def _outcome_lines(summary: Section, run_dir: Path) -> Iterator[Line]:
    """Yields why the run ended where that is not its goal, the return, and where everything is."""
    if summary["status"] != RunStatus.COMPLETED or summary["reason"].startswith(EARLY):
        yield "because", _short(summary["reason"].splitlines()[0] if summary["reason"] else "unknown")
    if (result := summary["eval"])["episodes"]:
        reward = mean_return(result["mean_reward"])
        spread = f"+/- {mean_return(result['std_reward'])} over {result['episodes']} episodes"
        yield "return", f"{reward} {spread if result['episodes'] > 1 else 'in one episode'} of evaluation"
    elif (trained := _training_return(summary)) is not None:
        yield "return", f"{mean_return(trained)} in the last episodes of training; none of evaluation"
    if restarts := _restarts_text(summary):
        yield "restarted", restarts
    yield "directory", shown_path(run_dir)


def _training_return(summary: Section) -> float | None:
    """Returns the mean return of the last training episodes; other loops' summaries may not say."""
    reward: float | None = summary.get("rollout", {}).get("ep_rew_mean")
    return reward


def _restarts_text(summary: Section) -> str:
    """Returns how often processes and environments began again; '' if none did. Other loops' summaries may not say."""
    counts = {"all processes": summary.get("learner_restarts", 0), "environments": summary.get("restarts", 0)}
    times = {name: "once" if number == 1 else f"{count(number)} times" for name, number in counts.items() if number}
    return ", ".join(f"{name} {text}" for name, text in times.items())


def _result_lines(summary: Section) -> list[Line]:
    """Returns names and values: rates, barrier waits of several ranks, cores, the bottleneck and the first advice."""
    rates, bottleneck = summary["rates"], summary["bottleneck"]
    lines: list[Line] = []
    if any(rates[key] for key in SPEEDS):
        speeds = [f"{METRICS[f'perf/{key}'].row} {rate(rates[key])}" for key in SPEEDS if rates[key]]
        lines += [("rates", "  ".join(speeds) + f" env steps/s  utd {fixed(rates['utd'], 2)}")]
    lines += _learner_lines(rates) + _rank_lines(summary)
    if (cores := summary["cores"]) is not None:
        used = {row: seconds / cores["wall_s"] for row, seconds in cores["seconds"].items()}
        step = f"; {significant(cores['cpu_ms_per_env_step'])} ms of CPU per env step"
        lines.append(("cores", cores_text(used, cores["capacity"]) + step))
    where = f" ({bottleneck['phase']})" if bottleneck["phase"] else ""
    lines += [("bottleneck", _short(f"{bottleneck['verdict']}{where}: {bottleneck['reason']}"))]
    return lines + [("advice", _short(advice)) for advice in bottleneck["advice"][:1]]


def _learner_lines(rates: Section) -> list[Line]:
    """Returns the work of the learners as samples/s, and TFLOP/s of one of them while it is active, where known."""
    samples, flops = rates["samples_per_sec"], rates["flops_per_sec"]
    known = [f"{rate(samples)} samples/s"] if samples else []
    known += [f"{flops / FLOPS_PER_TFLOP:.3g} TFLOP/s while active"] if flops else []
    return [("learning", "  ".join(known))] if known else []


def _rank_lines(summary: Section) -> list[Line]:
    """Returns how long several ranks waited at barriers, and which one they waited for."""
    learners: Sequence[Section | None] = summary["timing"].get("learners", ())
    waits_s = [
        section["phases_s"][RANK_BARRIER]
        for section in learners
        # A rank without time after the warm-up has waited for nobody.
        if section is not None and section["wall_s"] > section["phases_s"]["warmup"]
    ]
    if not waits_s:
        return []
    waits = "/".join(fixed(reduce(waits_s), 1) for reduce in (min, fmean, max))
    return [("ranks", f"{len(learners)}: barrier {waits} s (min/mean/max), {_straggler_text(summary)}")]


def _straggler_text(summary: Section) -> str:
    late = summary["timing"]["straggler"]
    if late is None:
        return "none is late"
    return f"rank {late['rank']} late {fixed(late['ms'], 1)} ms ({late['share']:.0%})"


def _account(timing: Section) -> Table | None:
    """Returns the largest phases of both sides; None where neither was timed."""
    left = _account_rows(timing["learner"], LEARNER_NAMES)
    right = _account_rows(timing["collector"], COLLECTOR_NAMES)
    if not left and not right:
        return None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"{'time':<{NAME_WIDTH - 2}}", style="cyan")
    for side in ("Learner", "Collector"):
        table.add_column(side, min_width=16)
        table.add_column("s", justify="right")
        table.add_column("%", justify="right")
    for learner, collector in zip_longest(left, right, fillvalue=("", "", "")):
        table.add_row("", *learner, *collector)
    return table


def _account_rows(section: Section | None, names: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns the largest phases and the rest; seconds and percentages of all rows are those of the wall."""
    if section is None or section["wall_s"] <= 0.0:
        return []
    seconds = {**section["phases_s"], "other": section["other_s"]}
    largest = sorted(seconds, key=lambda name: -seconds[name])[:MOST_PHASES]
    shown = {names[name]: seconds[name] for name in largest if seconds[name] >= LEAST_SHARE * section["wall_s"]}
    shown["the rest"] = section["wall_s"] - sum(shown.values())
    shares = percentages([max(value, 0.0) for value in shown.values()])
    return [(name, f"{value:.1f}", share) for (name, value), share in zip(shown.items(), shares, strict=True)]


def percentages(values: Sequence[float]) -> list[str]:
    """Returns percentages with one decimal that sum to exactly 100.0: the largest remainders are rounded up."""
    total = sum(values)
    if total <= 0:
        return ["-" for _ in values]
    exact = [1000.0 * value / total for value in values]
    tenths = [int(share // 1) for share in exact]
    by_remainder = sorted(range(len(values)), key=lambda index: tenths[index] - exact[index])
    for index in by_remainder[: 1000 - sum(tenths)]:
        tenths[index] += 1
    return [f"{share / 10:.1f}" for share in tenths]


def _next_commands(summary: Section, run_dir: Path) -> Iterator[str]:
    """Yields what to type next, most wanted first: only what this run has the files for."""
    run, status = shown_path(run_dir), summary["status"]
    saved = [int(path.name.removeprefix("step-")) for path in run_dir.glob(f"checkpoints/step-{12 * '[0-9]'}")]
    other = _newest_beside(run_dir)
    if status == RunStatus.FAILED and (run_dir / "train.log").is_file():
        yield f"less {shown_path(run_dir / 'train.log')}"
    if saved and status != RunStatus.COMPLETED:
        yield f"offpolicy resume {run}"
    if any(saved):
        yield f"offpolicy eval {run} --episodes 20"
        if _draws(run_dir):
            yield f"offpolicy play {run} --video x.gif"
    env_id = _env_id(run_dir)
    if summary["updates"] and summary["timing"]["learner"] and env_id is not None:
        yield f"offpolicy explain {run}"
    env_ids = {env_id, None if other is None else _env_id(other)} - {None}  # that of another trainer's run is not known
    both = [] if other is None or len(env_ids) > 1 else [other, run_dir]
    if summary["updates"] and both and all(map(_can_be_compared, both)):
        yield f"offpolicy compare {' '.join(map(shown_path, both))}"
    if any(run_dir.glob("events.out.tfevents.*")):
        others = [] if other is None else [shown_path(other)]
        yield f"offpolicy tensorboard {' '.join([*others, run])}"
    if saved and status == RunStatus.COMPLETED and summary["reason"].startswith(EARLY):
        yield f"offpolicy resume {run} stop.reward=null stop.patience=0"
    elif saved and status == RunStatus.COMPLETED:
        yield f"offpolicy resume {run} total_timesteps={2 * summary['env_steps']}"


def _env_id(run_dir: Path) -> str | None:
    """Returns the environment; None where `config.yaml` is none of ours: a loop that calls `log_step` may write any."""
    try:
        return read_config(run_dir).env.id
    except ConfigError:
        return None


def _draws(run_dir: Path) -> bool:
    """True unless the run has recorded that its environment makes no pictures."""
    try:
        return read_spec(run_dir).draws is not False
    except ConfigError:
        return True


def _newest_beside(run_dir: Path) -> Path | None:
    """Returns the newest other run of the same directory; not `latest`, which is a link to this one."""
    newest, newest_s = None, float("-inf")
    with contextlib.suppress(OSError):  # the working directory was deleted
        own = run_dir.absolute()
        for file in own.parent.glob("*/metrics.jsonl"):
            with contextlib.suppress(OSError):  # that run is being deleted, or has a dangling link
                modified_s = file.stat().st_mtime
                if modified_s > newest_s and file.parent != own and not file.parent.is_symlink():
                    newest, newest_s = file.parent, modified_s
    return newest


def _can_be_compared(run: Path) -> bool:
    """True if a run has written enough records after its warm-up, which ends with the one of the first updates."""
    records = read_lines(run / "metrics.jsonl", TAIL_BYTES)
    return sum(bool(record.get("train/n_updates")) for record in records) > COMPARABLE


def _typed(command: str) -> list[str]:
    """Returns a command in lines that fit, each but the last with the backslash that lets a shell read on.

    A word of the shell is never broken: a longer one has a line for itself.
    """
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= COMMAND_WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _next_line(name: str, line: str) -> Text:
    """Returns a line to type, whole: what is too long for the terminal is wrapped by it, and can be pasted."""
    text = Text.assemble((f"{name:<{NEXT_WIDTH}}", "cyan"), (line, "bold"))
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True, min_width=NAME_WIDTH - 2)
    grid.add_column(overflow="fold")
    return grid


def _short(text: str) -> str:
    return textwrap.shorten(text, LONGEST, placeholder=" ...")


def _num_rows(line: Line) -> int:
    return -(-cell_len(line[1]) // (WIDTH - NAME_WIDTH))


def _typed_rows(lines: Sequence[str]) -> int:
    return sum(-(-(NEXT_WIDTH + cell_len(line)) // WIDTH) for line in lines)

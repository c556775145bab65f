"""The last screen of a run, within 80 columns and 23 rows: what happened, what came out, what to type next."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offpolicy.config.run_files import read_config, read_spec
from offpolicy.errors import ConfigError
from offpolicy.logger.console import STATUS_STYLES, cores_text, duration, plain_text, rate, shown_path
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
        lines = [*_outcome_lines(summary, run_dir), *(_result_lines(summary) if summary["updates"] else [])]
        commands = list(_next_commands(summary, run_dir))
        may_leave = [*OPTIONAL, *reversed(commands[LEAST_COMMANDS:])]
        while True:
            screen = _screen(summary, lines, commands)
            printed = plain_text(screen, width=WIDTH).splitlines()
            if not may_leave or sum(-(-len(line) // WIDTH) or 1 for line in printed) <= MOST_ROWS:
                return screen
            left = may_leave.pop(0)
            lines = [line for line in lines if line[0] != left]
            commands = [command for command in commands if command != left]
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".replace("\n", " ")
        return Group(_headline(summary), Text(f"warning: the rest of the last screen failed: {cause}"))


def _screen(summary: Section, lines: Sequence[tuple[str, str]], commands: Sequence[str]) -> Group:
    results = Table.grid(padding=(0, 2, 0, 0))
    results.add_column(style="cyan", no_wrap=True, min_width=NAME_WIDTH - 2)
    results.add_column(overflow="fold")
    for name, value in lines:
        short = value if name == "directory" else textwrap.shorten(value, LONGEST, placeholder=" ...")
        results.add_row(name, Text(short, "bold yellow" if name == "bottleneck" else ""))
    parts: list[RenderableType] = [_headline(summary), results]
    if summary["updates"] and (summary["timing"]["learner"] or summary["timing"]["collector"]):
        parts.append(_account(summary["timing"]))
    for command in commands:  # it stays whole: what is too long for the terminal is wrapped by it, and can be pasted
        name = "next  " if command == commands[0] else "      "
        parts.append(Text.assemble((name, "cyan"), (command, "bold"), no_wrap=True, overflow="ignore"))
    return Group(*parts)


def _headline(summary: Section) -> Text:
    status, begin = summary["status"], summary["from_env_step"]
    unused = f" ({summary['not_learnt_from']:,} not learnt from)" if summary["not_learnt_from"] else ""
    done = f" after {summary['env_steps']:,} env steps{unused}, {summary['updates']:,} updates"
    done += f", {duration(summary['wall_s'])}"
    since = f" since env step {begin:,}" if begin else ""
    return Text.assemble((status, STATUS_STYLES.get(status, "bold")), done, since)


def _outcome_lines(summary: Section, run_dir: Path) -> Iterator[tuple[str, str]]:
    """Yields why the run ended where that is not its goal, the return, and where everything is."""
    if summary["status"] != RunStatus.COMPLETED or summary["reason"].startswith(EARLY):
        yield "because", summary["reason"].partition("\n")[0] or "unknown"
    result, trained = summary["eval"], summary["rollout"]["ep_rew_mean"]
    if result["episodes"]:
        spread = f"+/- {return_text(result['std_reward'])} over {result['episodes']} episodes"
        spread = spread if result["episodes"] > 1 else "in one episode"
        yield "return", f"{return_text(result['mean_reward'])} {spread} of evaluation"
    elif trained is not None:
        yield "return", f"{return_text(trained)} in the last episodes of training; none of evaluation"
    restarts = {"all processes": summary["learner_restarts"], "environments": summary["restarts"]}
    times = [f"{name} {'once' if num == 1 else f'{num:,} times'}" for name, num in restarts.items() if num]
    if times:
        yield "restarted", ", ".join(times)
    yield "directory", shown_path(run_dir)


def _result_lines(summary: Section) -> Iterator[tuple[str, str]]:
    """Yields rates, the learners' work, barrier waits of several ranks, cores, the bottleneck and the first advice."""
    rates, bottleneck, cores = summary["rates"], summary["bottleneck"], summary["cores"]
    speeds = [f"{METRICS[f'perf/{key}'].row} {rate(rates[key])}" for key in SPEEDS if rates[key]]
    if speeds:
        yield "rates", "  ".join(speeds) + f" env steps/s  utd {three_digits(rates['utd'])}"
    known = [f"{rate(rates['samples_per_sec'])} samples/s"] if rates["samples_per_sec"] else []
    if rates["flops_per_sec"]:
        known.append(f"{rates['flops_per_sec'] / FLOPS_PER_TFLOP:.3g} TFLOP/s while active")
    if known:
        yield "learning", "  ".join(known)
    learners = summary["timing"].get("learners", ())
    # A rank without time after the warm-up has waited for no other one.
    timed = [rank["phases_s"] for rank in learners if rank and rank["wall_s"] > rank["phases_s"]["warmup"]]
    if timed:
        late, waits_s = summary["timing"]["straggler"], [phases_s[LearnerPhase.RANK_BARRIER] for phases_s in timed]
        who = f"rank {late['rank']} late {late['ms']:z.1f} ms ({late['share']:.0%})" if late else "none is late"
        waits = "/".join(f"{reduce(waits_s):z.1f}" for reduce in (min, fmean, max))
        yield "ranks", f"{len(learners)}: barrier {waits} s (min/mean/max), {who}"
    if cores is not None:
        used = {row: seconds / cores["wall_s"] for row, seconds in cores["seconds"].items()}
        step = f"; {three_digits(cores['cpu_ms_per_env_step'])} ms of CPU per env step"
        yield "cores", cores_text(used, cores["capacity"]) + step
    where = f" ({bottleneck['phase']})" if bottleneck["phase"] else ""
    yield "bottleneck", f"{bottleneck['verdict']}{where}: {bottleneck['reason']}"
    yield from (("advice", advice) for advice in bottleneck["advice"][:1])


def _account(timing: Section) -> Table:
    """Returns the largest phases of both sides."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"{'time':<{NAME_WIDTH - 2}}")
    for side in ("Learner", "Collector"):
        table.add_column(side, min_width=16)
        table.add_column("s", justify="right")
        table.add_column("%", justify="right")
    sides = (_account_rows(timing["learner"], LEARNER_NAMES), _account_rows(timing["collector"], COLLECTOR_NAMES))
    for learner, collector in zip_longest(*sides, fillvalue=("", "", "")):
        table.add_row("", *learner, *collector)
    return table


def _account_rows(section: Section | None, names: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns the largest phases and the rest, in seconds and in percent of the wall."""
    if section is None:
        return []
    wall_s, seconds = section["wall_s"], {**section["phases_s"], "other": section["other_s"]}
    largest = sorted(seconds, key=lambda name: -seconds[name])[:MOST_PHASES]
    shown = {names[name]: seconds[name] for name in largest if seconds[name] >= LEAST_SHARE * wall_s}
    shown["the rest"] = wall_s - sum(shown.values())
    return [(name, f"{value:z.1f}", f"{100.0 * value / wall_s:z.1f}") for name, value in shown.items()]


def _next_commands(summary: Section, run_dir: Path) -> Iterator[str]:
    """Yields what to type next, most wanted first: only what this run has the files for."""
    run, is_completed = shown_path(run_dir), summary["status"] == RunStatus.COMPLETED
    saved = [int(path.name.removeprefix("step-")) for path in run_dir.glob(f"checkpoints/step-{12 * '[0-9]'}")]
    env_id, draws = _env_id(run_dir), None
    with contextlib.suppress(ConfigError):
        draws = read_spec(run_dir).draws  # None: the run has not recorded whether its environment makes pictures
    if summary["status"] == RunStatus.FAILED and (run_dir / "train.log").is_file():
        yield f"less {shown_path(run_dir / 'train.log')}"
    if saved and not is_completed:
        yield f"offpolicy resume {run}"
    if any(saved):
        yield f"offpolicy eval {run} --episodes 20"
        if draws is not False:
            yield f"offpolicy play {run} --video x.gif"
    if summary["updates"] and summary["timing"]["learner"] and env_id is not None:
        yield f"offpolicy explain {run}"
    runs = [*_newest_beside(run_dir), run_dir]
    is_one_env = len({env_id, _env_id(runs[0])} - {None}) <= 1
    # Of each the records after its warm-up, which ends with the one of the first updates.
    learning = (
        sum(bool(record.get("train/n_updates")) for record in read_lines(path / "metrics.jsonl", TAIL_BYTES))
        for path in runs
    )
    if summary["updates"] and len(runs) > 1 and is_one_env and min(learning) > COMPARABLE:
        yield f"offpolicy compare {' '.join(map(shown_path, runs))}"
    if any(run_dir.glob("events.out.tfevents.*")):
        yield f"offpolicy tensorboard {' '.join(map(shown_path, runs))}"
    if saved and is_completed:
        is_early = summary["reason"].startswith(EARLY)
        more = "stop.reward=null stop.patience=0" if is_early else f"total_timesteps={2 * summary['env_steps']}"
        yield f"offpolicy resume {run} {more}"


def _env_id(run_dir: Path) -> str | None:
    """Returns the environment; None of a loop that calls `log_step`: its `config.yaml` may be any."""
    with contextlib.suppress(ConfigError):
        return read_config(run_dir).env.name
    return None


def _newest_beside(run_dir: Path) -> list[Path]:
    """Returns the newest other run of the same directory, if any; not `latest`, which is a link to this one."""
    with contextlib.suppress(OSError):  # a directory was deleted
        own = run_dir.absolute()
        files = [file for file in own.parent.glob("*/metrics.jsonl") if file.parent != own]
        times_s = {file.parent: file.stat().st_mtime for file in files if not file.parent.is_symlink()}
        return sorted(times_s, key=times_s.__getitem__)[-1:]
    return []

"""`make bench-page`: docs/benchmarks.md and its pictures, from the files of benchmarks/results that git tracks.

Every race is that of the newest entry of each kind of machine, of several rounds if there is one; every part that of
the newest entry that has it. The words around the tables are in benchmarks/page.md, where `{{name}}` stands for what
is made here.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import NamedTuple

from benchmarks.charts import Bars, Curve, curves_svg, races_svg
from benchmarks.journal import is_marked
from benchmarks.parts import scaling, updates
from benchmarks.parts.measurement import Measurement, measurements_of
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.tables import HEADINGS, Done, rates, ratios, repeats_of, rows
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.results import REPOSITORY, Entry, machine_kind, processor, tracked_entries
from benchmarks.stats import Spread

TEXT = Path(__file__).with_name("page.md")
PAGE, PICTURES = REPOSITORY / "docs" / "benchmarks.md", REPOSITORY / "docs" / "img"
RACES_PICTURE, SCALING_PICTURE = "bench-races.svg", "bench-scaling.svg"
OURS, WHOLE_ROUNDS = "ours", 2  # a contender, and its quiet rounds that make a race a whole one
WIDTH = 100  # of a line of the documentation
NOT_YET = "*Not measured yet: `{}`.*"
_NO_NUMBERS = ["no quiet round", "", "", "", ""]
HOLE = re.compile(r"^\{\{([\w-]+)\}\}$", re.MULTILINE)


class Race(NamedTuple):
    """The newest repeats of a race, and the entry that they are of."""

    race: str
    repeats: list[Done]
    entry: Entry

    @property
    def asked(self) -> list[str]:
        """Contenders that were asked for."""
        return [key for key in WORKLOADS[self.race].contenders if key in self.entry["settings"]["only"]]

    @property
    def processor(self) -> str:
        """The kind of processor that it was run on."""
        return processor(self.entry["hardware"])

    @property
    def started(self) -> str:
        """When the entry was begun."""
        return str(self.entry["started"])

    @property
    def missing(self) -> list[str]:
        """Contenders that were asked for, and are in no repeat."""
        return [key for key in self.asked if key not in {one.contender for one in self.repeats}]


def newest_races(entries: Sequence[Entry]) -> dict[str, Race]:
    """The newest entry with repeats of each race: one of several rounds, or with quiet ones, where there is any."""
    found: dict[str, tuple[tuple[bool, bool], Race]] = {}
    for entry in entries:
        for race in WORKLOADS:
            repeats = repeats_of(entry["tasks"], race) if entry["benchmark"] == "peers" and "tasks" in entry else []
            quiet = Counter(one.contender for one in repeats if not one.is_marked)
            weight = quiet[OURS] >= WHOLE_ROUNDS, bool(quiet)  # busy or few rounds, or without ours, replace no better
            if repeats and (race not in found or weight >= found[race][0]):
                found[race] = weight, Race(race, repeats, entry)
    return {race: found[race][1] for race in WORKLOADS if race in found}


def races_by_machine(entries: Sequence[Entry]) -> list[dict[str, Race]]:
    """The newest races of each kind of machine: first those of the one with the most races, then the newer ones."""
    by_machine: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        by_machine.setdefault(machine_kind(entry), []).append(entry)
    found = [races for own in by_machine.values() if (races := newest_races(own))]
    return sorted(found, key=lambda races: (len(races), max(one.started for one in races.values())), reverse=True)


def newest_parts(entries: Sequence[Entry]) -> dict[str, tuple[list[Measurement], Entry]]:
    """The measurements of each part in the newest entry that has it; entries of before journals are not read."""
    found: dict[str, tuple[list[Measurement], Entry]] = {}
    for entry in entries:
        if entry["benchmark"] != "parts" or "tasks" not in entry:
            continue
        for part in dict.fromkeys(key.split("/")[0] for key in entry["tasks"]):
            own = {key: outcome for key, outcome in entry["tasks"].items() if key.split("/")[0] == part}
            is_quiet = any(not is_marked(outcome) and not outcome.get("failure") for outcome in own.values())
            if is_quiet or part not in found:  # busy rounds replace no quiet ones
                found[part] = measurements_of({"tasks": own}), {**entry, "tasks": own}
    return found


def origin(command: str, entry: Entry) -> str:
    """Where numbers are from: the command, the commit, the machine, the quiet of it."""
    hardware, versions = entry["hardware"], entry["versions"]
    shares = [float(outcome["others_share"]) for outcome in entry["tasks"].values()]
    marked = sum(is_marked(outcome) for outcome in entry["tasks"].values())
    return "\n".join(
        [
            f"`{command}`",
            f"at commit {entry['commit']}, {entry['started'][:10]}.",
            f"{processor(hardware)}, {hardware['cores']} cores;",
            f"torch {versions['torch']}, mujoco {versions['mujoco']}.",
            f"Others took up to {max(shares):.0%} of the cores; {marked} of {len(shares)} measurements are marked.",
            *_failed(entry["tasks"]),
        ]
    )


def _failed(tasks: Mapping[str, Entry]) -> list[str]:
    """How many measurements failed, and of what."""
    keys = [key for key, outcome in tasks.items() if outcome.get("failure")]
    points = ", ".join(dict.fromkeys(re.sub(r"/\d+$", "", key) for key in keys))  # without their rounds
    return [f"{len(keys)} failed: {points}."] if keys else []


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    rule = ["---" if not heading or heading == "threads" else "---:" for heading in headings]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *lines))


def summary(by_machine: Sequence[Mapping[str, Race]]) -> str:
    """The median ratios of all races, a table for each kind of machine."""
    return "\n\n".join(filter(None, map(_ratios, by_machine))) or NOT_YET.format("make bench-peers")


def _ratios(races: Mapping[str, Race]) -> str:
    """The table of one kind of machine, with its processor and the commits; empty without a ratio."""
    found = {race: ratios(one.repeats, one.asked) for race, one in races.items()}
    names = list(dict.fromkeys(name for by_name in found.values() for name in by_name))
    lines = [[name, *(_ratio(by_name.get(name, {})) for by_name in found.values())] for name in names]
    if not lines:
        return ""
    commits = ", ".join(dict.fromkeys(one.entry["commit"] for one in races.values()))
    title = f"{next(iter(races.values())).processor}, commit {commits}:"
    return f"{title}\n\n{table(['', *(f'`{race}`' for race in found)], lines)}"


def _ratio(by_round: Mapping[int, float]) -> str:
    return f"{Spread.of(list(by_round.values())).median:.2f}" if by_round else ""


def race_section(race: str, by_machine: Sequence[Mapping[str, Race]]) -> str:
    """The tables of a race, one for each kind of machine."""
    tables = [_race_table(race, races[race]) for races in by_machine if race in races]
    return "\n\n".join(tables) or NOT_YET.format(f"make bench-peers race={race}")


def _race_table(race: str, one: Race) -> str:
    seconds = one.entry["settings"]["seconds"]
    own = {
        **one.entry,
        "tasks": {key: value for key, value in one.entry["tasks"].items() if key.startswith(f"{race}/")},
    }
    tuned = _tuned(one.entry["tasks"].get(f"{race}/tune"))
    only = "" if one.asked == list(WORKLOADS[race].contenders) else f" only={','.join(one.asked)}"
    where = origin(f"make bench-peers race={race} seconds={seconds:g}{only}", own)
    return f"{where}\n\n{table(*filled_columns(HEADINGS, rows(one.repeats, one.missing)))}{tuned}"


def filled_columns(
    headings: Sequence[str], lines: Sequence[Sequence[str]]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Headings and lines without the columns that are empty in every line: older results lack some."""
    kept = [any(column) for column in zip(*lines, strict=True)]
    return [*compress(headings, kept)], [[*compress(line, kept)] for line in lines]


def windows_bullet(races: Sequence[Race]) -> str:
    """The seconds of learning over which the rates were taken: those asked for, and those of the repeats."""
    asked = sorted({float(one.entry["settings"]["seconds"]) for one in races})
    taken = [repeat.window_s for one in races for repeat in one.repeats if repeat.window_s]
    seconds = f"{' or '.join(f'{each:g}' for each in asked)} s" if asked else "some seconds"
    found = f" (it was over {min(taken):.1f} to {max(taken):.1f} s)" if taken else ""
    return _bullet(
        f"Each repeat is a new process. Its rate is taken from 8 s after learning began, when code is compiled, over"
        f" about {seconds}{found}. Ours begin later where their first trial of threads and modes takes longer."
    )


def tuned_bullet(races: Sequence[Race]) -> str:
    """What a row `tuned` is, where a table has one."""
    text = "*tuned* is what `offpolicy tune` found in three minutes. The number of environments stays."
    return _bullet(text) if any("tuned" in one.asked for one in races) else ""


def iterations_bullet(races: Sequence[Race]) -> str:
    """What the columns of an iteration are: that of its update is not in older results."""
    has_updates = any(repeat.update_ms is not None for one in races for repeat in one.repeats)
    of_it = (
        " *of it update* is the update with the sampling of its batch, on average in the same seconds. With `overlap` a"
        " step of the collector lies beside it."
    )
    return _bullet(f"*iteration* is a vector step with its one update, on average.{of_it * has_updates}")


def _bullet(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _tuned(outcome: Entry | None) -> str:
    """What `offpolicy tune` found, and whether others disturbed it."""
    if outcome is None:
        return ""
    words = outcome.get("failure") or " ".join(outcome["data"]) or "no change was faster"
    mark = f" (others took {outcome['others_share']:.0%} of the cores meanwhile)" if is_marked(outcome) else ""
    return f"\n\nTuned{mark}:\n\n    {words}"


def update_section(parts: Mapping[str, tuple[list[Measurement], Entry]]) -> str:
    """Updates beside their floors."""
    if "updates" not in parts:
        return NOT_YET.format("make bench only=updates")
    measured, entry = parts["updates"]
    lines = []
    for ratio in measured:
        case, _, quantity = ratio.name.partition(": ")
        if quantity == updates.RATIO:
            update, floor = (one for one in measured if one.name.startswith(case) and one.unit == "ms")
            words = floor.name.partition(": ")[2].removeprefix("floor, ")
            numbers = [f"{update.spread.median:.2f}", f"{floor.spread.median:.2f}", *_ratio_cells(ratio)]
            lines.append([case, *(numbers if ratio.has_quiet_round else _NO_NUMBERS), words])
    cases = {line[0] for line in lines}
    for update in measured:  # those without a floor
        if update.name.partition(": ")[0] not in cases:
            milliseconds = f"{update.spread.median:.2f}" if update.has_quiet_round else _NO_NUMBERS[0]
            lines.append([update.name, milliseconds, "", "", "", "", ""])
    headings = ["", "update, ms", "floor, ms", "update / floor", "least", "most", "the floor"]
    return f"{origin('make bench only=updates', entry)}\n\n{table(headings, lines)}"


def _ratio_cells(ratio: Measurement) -> list[str]:
    return [f"{value:.2f}" for value in ratio.spread]


def scaling_points(measured: Sequence[Measurement], axis: str, ending: str = "") -> dict[int, Spread]:
    """The points of one axis: those whose name ends so."""
    pattern = re.compile(rf"{axis}=(\d+){re.escape(ending)}$")
    found = [(pattern.match(one.name), one) for one in measured if one.has_quiet_round]
    return {int(match[1]): one.spread for match, one in found if match}


def scaling_section(parts: Mapping[str, tuple[list[Measurement], Entry]]) -> str:
    """Tables of all four axes."""
    if scaling.PART not in parts:
        return NOT_YET.format("make bench only=scaling")
    measured, entry = parts[scaling.PART]
    tables = []
    for axis, first in (("environments", "environments"), ("ranks", "learner ranks")):
        points = scaling_points(measured, axis)
        base = points[min(points)].median if points else 1.0
        lines = [[f"{at:,}", *_spread_cells(one), f"{one.median / base:.2f}"] for at, one in points.items()]
        tables.append(table([first, "env steps/s", "min", "max", "times the first"], lines))
    for axis, first in (("batch", "rows of a batch"), ("width", "units of a layer")):
        milliseconds, relative = scaling_points(measured, axis), scaling_points(measured, axis, f": {updates.RATIO}")
        lines = [[f"{at:,}", *_spread_cells(one), f"{relative[at].median:.2f}"] for at, one in milliseconds.items()]
        tables.append(table([first, "update, ms", "min", "max", "update / floor"], lines))
    has_picture = bool(scaling_curves(measured))
    picture = f"![Speed over environments, ranks, batch and width](img/{SCALING_PICTURE})" if has_picture else ""
    return "\n\n".join([origin("make bench only=scaling", entry), picture, *tables])


def _spread_cells(spread: Spread) -> list[str]:
    return [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in spread]


def parts_section(parts: Mapping[str, tuple[list[Measurement], Entry]]) -> str:
    """All other parts, each with its command."""
    others = {part: found for part, found in parts.items() if part not in ("updates", scaling.PART)}
    if not others:
        return NOT_YET.format("make bench")
    sections = []
    for part, (measured, entry) in others.items():
        where = origin(f"make bench only={part}", entry)
        sections.append(f"### {part.capitalize()}\n\n{where}\n\n{_part_table(measured)}")
    return "\n\n".join(sections)


def _part_table(measured: Sequence[Measurement]) -> str:
    """One line per measurement; where several things are measured alike, one line per thing."""
    things = list(dict.fromkeys(one.part for one in measured))
    if len(things) == 1:
        lines = [
            [one.name, *(_spread_cells(one.spread) if one.has_quiet_round else _NO_NUMBERS[:3]), one.unit]
            for one in measured
        ]
        return table(["", "median", "min", "max", "unit"], lines)
    found = {(one.part, f"{one.name} ({one.unit})" if one.unit else one.name): _range_cell(one) for one in measured}
    names = list(dict.fromkeys(name for _, name in found))
    return table(["", *names], [[thing, *(found.get((thing, name), "") for name in names)] for thing in things])


def _range_cell(one: Measurement) -> str:
    """The median, and the least and the most in brackets."""
    if not one.has_quiet_round:
        return _NO_NUMBERS[0]
    middle, *ends = _spread_cells(one.spread)
    return middle if set(ends) == {middle} else f"{middle} [{', '.join(ends)}]"


def render(entries: Sequence[Entry]) -> str:
    """The page."""
    by_machine, parts = races_by_machine(entries), newest_parts(entries)
    races = [one for own in by_machine for one in own.values()]
    made = {
        "summary": summary(by_machine),
        "races-picture": races_picture(by_machine),
        "windows": windows_bullet(races),
        "iterations": iterations_bullet(races),
        "tuned": tuned_bullet(races),
        **{race: race_section(race, by_machine) for race in WORKLOADS},
        "updates": update_section(parts),
        "scaling": scaling_section(parts),
        "parts": parts_section(parts),
    }
    return filled(TEXT.read_text(), made)


def filled(text: str, made: Mapping[str, str]) -> str:
    """The text with what is made in place of each `{{name}}` that stands alone in its line."""
    return re.sub(r"\n{3,}", "\n\n", HOLE.sub(lambda hole: made[hole[1]], text))


def pictures(entries: Sequence[Entry]) -> Iterator[tuple[str, bytes]]:
    """The pictures by name, as far as something is measured."""
    by_machine, parts = races_by_machine(entries), newest_parts(entries)
    if drawn := drawn_races(by_machine):
        yield RACES_PICTURE, races_svg(race_bars(drawn))
    if scaling.PART in parts and (curves := scaling_curves(parts[scaling.PART][0])):
        yield SCALING_PICTURE, curves_svg(curves)


def drawn_races(by_machine: Sequence[Mapping[str, Race]]) -> Mapping[str, Race]:
    """The races of the picture: of the first machine with a quiet repeat."""
    return next(filter(race_bars, by_machine), {})


def races_picture(by_machine: Sequence[Mapping[str, Race]]) -> str:
    """The line with the picture of the races, and where they were run; empty without a quiet repeat."""
    where = next((one.processor for one in drawn_races(by_machine).values()), None)
    return f"![Env steps per second of all races, on {where}](img/{RACES_PICTURE})" if where else ""


def race_bars(races: Mapping[str, Race]) -> dict[str, Bars]:
    """The bars of every race with a quiet repeat."""
    bars: dict[str, Bars] = {}
    for race, one in races.items():
        values = {key: list(rates(one.repeats, key).values()) for key in CONTENDERS}
        spreads = {CONTENDERS[key].name: Spread.of(found) for key, found in values.items() if found}
        if spreads:
            bars[WORKLOADS[race].title] = spreads
    return bars


def scaling_curves(measured: Sequence[Measurement]) -> list[Curve]:
    """The curve of every axis with a quiet point."""
    ending = f": {updates.RATIO}"
    curves = [
        Curve("One update per vector step", "environments", "env steps/s", scaling_points(measured, "environments")),
        Curve("One update per env step", "learner ranks", "env steps/s", scaling_points(measured, "ranks")),
        Curve("SAC update", "rows of a batch", "update / GEMM floor", scaling_points(measured, "batch", ending)),
        Curve("SAC update", "units of a layer", "update / GEMM floor", scaling_points(measured, "width", ending)),
    ]
    return [curve for curve in curves if curve.points]


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__).parse_args(argv)
    entries = tracked_entries()
    PAGE.write_text(render(entries))
    made = dict(pictures(entries))
    for name in (RACES_PICTURE, SCALING_PICTURE):
        (PICTURES / name).unlink(missing_ok=True)
    for name, picture in made.items():
        (PICTURES / name).write_bytes(picture)
    print(f"written: {PAGE.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

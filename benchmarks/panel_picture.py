"""The panel of a finished run, as it stood at one of its records: the picture in README.md, and panels in pages.

python -m benchmarks.panel_picture RUN_DIR docs/img/panel.svg [--record -2] [--width 100] [--height 30]
python -m benchmarks.panel_picture RUN_DIR panel.txt --record 40 --width 80 --height 24
"""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path
from typing import Any

import yaml
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from offpolicy.logger.panel_layout import Room, render
from offpolicy.logger.panel_lines import Shown
from offpolicy.logger.record import Record, RunHeader
from offpolicy.timing.bottleneck import WARMING_UP, Advice, Bottleneck, Detail, Verdict
from offpolicy.timing.phases import CollectorPhase, LearnerPhase

WEB_FONT = re.compile(r',\s*url\("http[^)]*\) format\("\w+"\)')  # a picture in a page loads nothing
LABEL = re.compile(r"(?P<side>\w+)\((?P<phase>\w+)(?:: (?P<detail>[\w-]+))? (?P<share>\d+)%\)")


def read_verdict(record: Record) -> Verdict | None:
    """Returns the verdict that a record holds as text."""
    label = str(record.get("perf/bottleneck", ""))
    found = LABEL.fullmatch(label)
    if found is None:
        return WARMING_UP if label else None
    reason = str(record["perf/bottleneck_reason"])
    phases = LearnerPhase if "learner " + found["phase"] in reason else CollectorPhase
    advice = tuple(Advice(text) for text in str(record.get("perf/bottleneck_advice", "")).split("; ") if text)
    detail = Detail(found["detail"]) if found["detail"] else None
    return Verdict(Bottleneck(found["side"]), phases(found["phase"]), reason, advice, int(found["share"]) / 100, detail)


def read_header(run_dir: Path) -> RunHeader:
    """Returns what the panel says of a run in its title."""
    config: dict[str, Any] = yaml.safe_load((run_dir / "config.yaml").read_text())  # Any: configuration values
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())  # Any: a nested mapping
    return RunHeader(
        algo=config["algo"]["name"],
        env_id=config["env"]["id"],
        seed=config["seed"],
        mode=summary["mode"],
        total_timesteps=config["total_timesteps"],
        device=config["device"] if config["device"] != "auto" else "cpu",
        num_envs=config["env"]["num_envs"],
        runner=config["runner"]["name"],
        world_size=config["runner"]["world_size"],
        num_collectors=config["collect"]["num_collectors"],
    )


def read_course(run_dir: Path, last: int) -> Shown:
    """Returns what the panel showed at record number `last`, which may count from the end.

    Raises `ValueError` where there is no such record.
    """
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    if not -len(records) <= last < len(records):
        raise ValueError(f"record: got {last}, allowed {-len(records)} to {len(records) - 1} of {run_dir}")
    shown = Shown(read_header(run_dir), has_help=True)
    for record in records[: last % len(records) + 1]:
        shown.add(record, read_verdict(record))
    return shown


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("file", type=Path, help="to write: a picture where its name ends in .svg, else text")
    parser.add_argument("--record", type=int, default=-2, help="the last one holds the end of the run")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--height", type=int, default=30)
    options = parser.parse_args()
    console = Console(
        file=io.StringIO(), record=True, width=options.width, height=options.height, color_system="truecolor",
        force_terminal=True,
    )  # fmt: skip
    shown = read_course(options.run_dir, options.record)
    console.print(render(shown, Room(options.width, options.height)))
    is_picture, title = options.file.suffix == ".svg", f"{shown.header.algo} on {shown.header.env_id}"
    picture_format = WEB_FONT.sub("", CONSOLE_SVG_FORMAT)
    options.file.write_text(
        console.export_svg(title=title, theme=MONOKAI, code_format=picture_format)
        if is_picture
        else console.export_text()
    )


if __name__ == "__main__":
    main()

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from benchmarks import page
from benchmarks.page import PAGE, pictures, render
from benchmarks.parts.measurement import Measurement
from benchmarks.peers.race import Repeat
from benchmarks.results import tracked_entries

FACTS = {
    "commit": "abc",
    "started": "2026-11-22T00",
    "hardware": {"cpu": "A Cpu", "cores": 2},
    "versions": {"torch": "2.13", "mujoco": "3.17"},
}


def outcome(data: Any) -> dict[str, Any]:
    return {"others_share": 0.01, "data": data}


def race_entry(rate: float) -> dict[str, Any]:
    rates = {"ours": rate, "sbx": 100.0}
    tasks = {f"sac-1/{key}/1": outcome(asdict(Repeat(key, 1, [], one, None, 1.0, "2"))) for key, one in rates.items()}
    settings = {"seconds": 12.0, "only": ["ours", "sbx", "sb3-1"]}
    return {"benchmark": "peers", "settings": settings, "tasks": tasks, **FACTS}


def parts_entry(part: str, *measured: Measurement) -> dict[str, Any]:
    tasks = {f"{part}/1": outcome([one.to_mapping() for one in measured])}
    return {"benchmark": "parts", "tasks": tasks, **FACTS}


def test_the_committed_page_is_made_of_the_committed_results() -> None:
    assert PAGE.read_text() == render(tracked_entries()), "run `make bench-page`"


def test_what_is_not_measured_is_said_with_the_command() -> None:
    text = render([])
    assert "*Not measured yet: `make bench-peers race=td3-1`.*" in text
    assert "*Not measured yet: `make bench only=updates`.*" in text


def test_the_newest_race_is_shown_with_ratio_command_and_machine() -> None:
    text = render([race_entry(90.0), race_entry(110.0)])
    assert "| offpolicy / SBX | 1.10 |" in text
    assert "`make bench-peers race=sac-1 seconds=12 only=ours,sb3-1,sbx`\nat commit abc, 2026-11-22." in text
    assert "A Cpu, 2 cores;\ntorch 2.13, mujoco 3.17." in text
    assert "| Stable-Baselines3, 1 thread | not measured |" in text


def test_a_race_of_one_round_or_without_ours_replaces_none_of_several_rounds() -> None:
    def rounds(*names: str, rate: float, contender: str = "ours") -> dict[str, Any]:
        entry = race_entry(rate)
        tasks = {key: one for key, one in entry["tasks"].items() if contender in ("", key.split("/")[1])}
        return entry | {
            "tasks": {f"{key.rpartition('/')[0]}/{name}": one for key, one in tasks.items() for name in names}
        }

    whole, newer = rounds("1", "2", rate=90.0, contender=""), rounds("1", "2", rate=95.0, contender="")
    alone, without = rounds("1", rate=110.0, contender=""), rounds("1", "2", rate=120.0, contender="sbx")
    assert "| offpolicy / SBX | 0.90 |" in render([whole, alone, without])
    assert "| offpolicy / SBX | 0.95 |" in render([whole, newer])
    assert "| offpolicy / SBX | 1.10 |" in render([alone])


def test_the_generation_of_a_processor_is_named() -> None:
    hardware = {"cpu": "A Cpu", "cpu_version": "26/2/1", "cores": 2}
    assert "A Cpu (family 26, model 2), 2 cores;" in render([race_entry(90.0) | {"hardware": hardware}])


def on(processor: str, entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"hardware": {"cpu": processor, "cores": 2}}


def test_of_machines_with_as_many_races_the_newer_race_comes_first() -> None:
    """Other parts that were measured later change nothing."""
    newer, old = (
        on(name, race_entry(rate)) | {"started": started}
        for name, rate, started in (("New", 70.0, "2026-11-23"), ("Old", 80.0, "2026-11-22"))
    )
    parts = on("Old", parts_entry("storage", Measurement("storage", "row", "us", [7.0]))) | {"started": "2026-11-24"}
    text = render([old, newer, parts])
    assert text.index("New, commit abc:") < text.index("Old, commit abc:")


def test_the_picture_is_of_a_machine_with_a_quiet_round() -> None:
    complete = race_entry(90.0)
    complete["tasks"] |= {key.replace("sac-1", "td3-1"): one for key, one in complete["tasks"].items()}
    busy = on("Busy", complete)
    busy["tasks"] = {key: one | {"others_share": 0.6} for key, one in busy["tasks"].items()}
    assert "all races, on Quiet](" in render([busy, on("Quiet", race_entry(80.0))])


def test_every_kind_of_machine_has_its_own_race() -> None:
    """A race of another machine was one of the columns of a table of ratios."""
    complete, newer = race_entry(90.0), race_entry(70.0)
    complete["tasks"] |= {key.replace("sac-1", "td3-1"): one for key, one in complete["tasks"].items()}
    text = render([on("Slow", race_entry(50.0)), on("Old", race_entry(80.0)), on("Old", complete), on("Slow", newer)])
    parts = text.split("| offpolicy / SBX | ")
    assert [part[:4] for part in parts[1:]] == ["0.90", "0.70"]
    assert parts[0].rstrip().endswith("Old, commit abc:\n\n|  | `sac-1` | `td3-1` |\n| --- | ---: | ---: |")
    sac, td3 = text.split("### TD3, one environment")[0], text.split("### TD3, one environment")[1]
    assert sac.count("Old, 2 cores") == sac.count("Slow, 2 cores") == td3.count("Old, 2 cores") == 1
    assert "Slow, 2 cores" not in td3
    assert "![Env steps per second of all races, on Old](" in text


def test_a_column_that_no_result_has_is_not_shown() -> None:
    entry = race_entry(90.0)
    assert "of it update" not in render([entry]).split("### SAC, one environment")[1]
    entry["tasks"]["sac-1/ours/1"]["data"]["update_ms"] = 8.25
    section = render([entry]).split("### SAC, one environment")[1]
    assert "| offpolicy | 90.0 | 90.0 | 90.0 | 11.11 | 8.25 | 1/1 |" in section


def test_what_failed_is_named() -> None:
    entry = parts_entry("storage", Measurement("storage", "row", "us", [7.0]))
    for number in (2, 3):
        entry["tasks"][f"storage/{number}"] = outcome(None) | {"failure": "RuntimeError: exit code 1"}
    text = render([entry])
    assert "0 of 3 measurements are marked.\n2 failed: storage.\n" in text
    assert "| row | 7 | 7 | 7 | us |" in text


def test_the_windows_of_the_rates_are_those_of_the_repeats() -> None:
    entry = race_entry(90.0)
    for seconds, one in zip((5.75, 9.0), entry["tasks"].values(), strict=True):
        one["data"]["window_s"] = seconds
    text = " ".join(render([entry]).split())
    assert "when code is compiled, over about 12 s (it was over 5.8 to 9.0 s)." in text


def test_a_row_that_no_table_has_is_not_explained() -> None:
    entry = race_entry(90.0)
    assert "- *tuned* is" not in render([entry])
    entry["settings"]["only"].append("tuned")
    assert "- *tuned* is" in render([entry])


def test_a_page_without_a_quiet_round_has_no_picture() -> None:
    race, scaling = race_entry(110.0), parts_entry("scaling", Measurement("scaling", "batch=64", "ms", [2.0]))
    for one in (*race["tasks"].values(), *scaling["tasks"].values()):
        one["others_share"] = 0.6
    assert list(pictures([race, scaling])) == []
    assert "![" not in render([race, scaling])


def test_an_update_is_shown_beside_its_floor() -> None:
    name, floor = "SAC, 1 thread", "SAC, 1 thread: floor, 16 products of 256x256x256"
    measured = (
        Measurement("update", name, "ms", [8.0]),
        Measurement("update", floor, "ms", [4.0]),
        Measurement("update", f"{name}: update / floor", "", [1.9, 2.0, 2.1]),
    )
    alone = Measurement("update", "FLASHSAC, 1 thread", "ms", [9.0])
    text = render([parts_entry("updates", *measured, alone)])
    assert "| FLASHSAC, 1 thread | 9.00 |  |  |  |  |  |" in text
    assert "| SAC, 1 thread | 8.00 | 4.00 | 2.00 | 1.90 | 2.10 | 16 products of 256x256x256 |" in text


def test_parts_are_of_the_newest_entry_that_has_them() -> None:
    old, new = (parts_entry("storage", Measurement("storage", "row", "us", [us])) for us in (7.0, 3.0))
    text = render([old, new, parts_entry("hand", Measurement("hand", "step", "us", [5.0]))])
    assert "| row | 3 | 3 | 3 | us |" in text
    assert "| row | 7" not in text
    assert "| step | 5 | 5 | 5 | us |" in text


def test_things_that_are_measured_alike_are_the_lines_of_one_table() -> None:
    measured = [
        Measurement(topology, name, unit, [value, value + 2, value + 1])
        for topology, value in (("one rank", 10.0), ("two ranks", 20.0))
        for name, unit in (("env steps", "1/s"), ("share", ""))
    ]
    measured.append(Measurement("two ranks", "wait", "ms", [0.0, 0.0]))
    text = render([parts_entry("topologies", *measured)])
    assert "|  | env steps (1/s) | share | wait (ms) |\n" in text
    assert "| one rank | 11 [10, 12] | 11 [10, 12] |  |" in text
    assert "| two ranks | 21 [20, 22] | 21 [20, 22] | 0 |" in text


SCALING = parts_entry(
    "scaling",
    Measurement("scaling", "environments=1", "env steps/s", [100.0]),
    Measurement("scaling", "environments=4", "env steps/s", [350.0]),
    Measurement("scaling", "batch=64", "ms", [2.0]),
    Measurement("scaling", "batch=64: update / floor", "", [3.0]),
)


def test_scaling_says_how_many_times_the_first_point() -> None:
    text = render([SCALING])
    assert "| 4 | 350 | 350 | 350 | 3.50 |" in text
    assert "| 64 | 2 | 2 | 2 | 3.00 |" in text


@pytest.mark.parametrize("entry", [race_entry(110.0), SCALING])
def test_the_same_results_give_the_same_picture(entry: dict[str, Any]) -> None:
    ((name, one),), ((_, two),) = pictures([entry]), pictures([entry])
    assert one == two
    assert name in {page.RACES_PICTURE, page.SCALING_PICTURE}
    assert ("SBX" if name == page.RACES_PICTURE else "environments") in one.decode()


def test_the_committed_pictures_are_made_of_the_committed_results() -> None:
    made = dict(pictures(tracked_entries()))
    committed = {path.name: path.read_bytes() for path in page.PICTURES.glob("bench-*.svg")}
    assert committed == made, "run `make bench-page`"


def test_busy_rounds_have_no_median_and_replace_no_quiet_ones() -> None:
    quiet, busy = (parts_entry("storage", Measurement("storage", "row", "us", [us])) for us in (7.0, 3.0))
    busy["tasks"]["storage/1"]["others_share"] = 0.6
    assert "| row | 7 | 7 | 7 | us |" in render([quiet, busy])
    assert "| row | no quiet round |  |  | us |" in render([busy])

"""The rules of Chrome's Trace Event Format that a viewer relies on, as a check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEEDED = {"X": ("ts", "dur"), "C": ("ts", "args"), "M": ("args",), "s": ("ts", "id"), "f": ("ts", "id"), "i": ("ts",)}


def problems_of(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with a trace."""
    events = content["traceEvents"]
    problems = [f"unknown phase: {event}" for event in events if event.get("ph") not in NEEDED]
    for event in events:
        missing = [key for key in ("pid", "tid", "name", *NEEDED.get(event["ph"], ())) if key not in event]
        if missing:
            problems.append(f"without {missing}: {event}")
        elif any(event.get(key, 0) < 0 for key in ("ts", "dur")):
            problems.append(f"before the start, or backwards: {event}")
    spans = [event for event in events if event["ph"] == "X"]
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    processes = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    for pid, tid in {(span["pid"], span["tid"]) for span in spans} - named:
        problems.append(f"thread {tid} of {pid} has no name")
    problems += [f"process {pid} has no name" for pid in {span["pid"] for span in spans} - processes]
    return problems + _bad_arrows(events) + _overlapping(spans)


def _bad_arrows(events: list[dict[str, Any]]) -> list[str]:
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in ("s", "f"))
    problems = [f"half an arrow: {number}" for number in starts.keys() ^ ends.keys()]
    backwards = [number for number in starts.keys() & ends.keys() if ends[number]["ts"] < starts[number]["ts"]]
    return problems + [f"an arrow into the past: {number}" for number in backwards]


def _overlapping(spans: list[dict[str, Any]]) -> list[str]:
    """Spans of one of our threads follow each other; those of torch.profiler, which have a category, are nested."""
    problems = []
    ours = [span for span in spans if "cat" not in span and "dur" in span]
    for thread in {(span["pid"], span["tid"]) for span in ours}:
        own = sorted((s["ts"], s["ts"] + s["dur"]) for s in ours if (s["pid"], s["tid"]) == thread)
        late = [now for now, then in zip(own, own[1:], strict=False) if now[1] > then[0] + 0.002]
        problems += [f"thread {thread} is in two phases at once at {at}" for at in late]
    return problems

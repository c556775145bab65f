"""`python -m benchmarks.scale` prints the tables of docs/scale.md, which says where the constants are from."""

from __future__ import annotations

import math
from typing import NamedTuple

from offpolicy.remote.collector import REPLY_BYTES
from offpolicy.replay.rate_limiter import MAX_UPDATES_PER_ITERATION

CORES = 16  # of a host, one collector on each
CALL_S, BYTE_S = 1.2e-3, 2.8e-9  # CPU of the link per call, and per byte of its reply
COLLECTOR_S = 3.9e-6  # CPU of the link per call, for each collector of the run
VERSION_S, WEIGHTS_S = 1.5e-3, 0.6e-3  # CPU of the link per version of the weights, and per call that brings them
WIRE = 1_500 / 1_448  # bytes on an Ethernet per byte of TCP
TWO_GPUS, ROWS_PER_STEP = 1.72, 16.0  # rate of two GPUs by that of one; rows of batches per env step
SLOWED = ((50, 14.7, 766), (20, 31.9, 385), (10, 59.0, 243))  # Mbit/s, ms of the link per call, env steps/s
UNSLOWED_MS, UNSLOWED_S, SLOWED_BYTES = 3.3, 16 / 2_100, 64_400  # of a call, and of a vector step of 16; of a reply


class Task(NamedTuple):
    """What an environment costs."""

    name: str
    slot_bytes: int
    num_envs: int  # of a collector
    steps_per_sec: float  # of a collector
    weights_bytes: int
    batch_rows: int  # on each GPU
    update_s: float


TASKS = (
    Task("HalfCheetah", 104, 16, 8_500, 293_936, 8_192, 3.45e-3),
    Task("Humanoid", 1_472, 4, 1_900, 655_496, 8_192, 3.45e-3),
    Task("images", 28_260, 16, 1_000, 12_400_000, 256, 40.7e-3),
)


def parts(task: Task, hosts: int, gpus: int, gbit: float) -> dict[str, float]:
    """Returns the env steps per second that each part carries."""
    envs, slots, collectors = task.num_envs, REPLY_BYTES // task.slot_bytes, hosts * CORES
    rows = envs * max(1, math.ceil((slots - 2 * envs) / envs))  # of a full reply
    sent = (rows + envs) * task.slot_bytes  # with the open slot of each environment
    utd, bytes_per_s = ROWS_PER_STEP / task.batch_rows / gpus, gbit * 1e9 / 8 / WIRE
    versions = utd / min(max(utd * collectors * envs, 1.0), MAX_UPDATES_PER_ITERATION)  # per env step
    calls, of_hosts = (min(versions * count, 1.0 / rows) for count in (collectors, hosts))  # with weights
    call_s = CALL_S + BYTE_S * sent + COLLECTOR_S * collectors
    return {
        "hosts": collectors * task.steps_per_sec,
        "link": 1.0 / (call_s / rows + VERSION_S * min(versions, 1.0 / rows) + WEIGHTS_S * calls),
        "rows": bytes_per_s * rows / sent,
        "weights": bytes_per_s / task.weights_bytes / of_hosts,
        "GPUs": (TWO_GPUS / 2) ** math.log2(gpus) / utd / task.update_s,
    }


if __name__ == "__main__":
    columns = [(gpus, gbit) for gbit in (1, 10, 100) for gpus in (1, 4, 16)]
    print("| | " + " | ".join(f"{gpus} GPU, {gbit} Gbit/s" for gpus, gbit in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for task in TASKS:
        for hosts in (1, 4, 16, 64, 256):
            least = [min((rate, name) for name, rate in parts(task, hosts, *each).items()) for each in columns]
            cells = [f"{float(f'{rate:.2g}'):,.0f} {name}" for rate, name in least]
            print(f"| {task.name}, {hosts} | {' | '.join(cells)} |")
    for mbit, measured_ms, steps in SLOWED:
        added_s = SLOWED_BYTES * WIRE * 8 / mbit / 1e6
        call_ms, predicted = UNSLOWED_MS + 1e3 * added_s, 16 / (UNSLOWED_S + added_s)
        print(f"| {mbit} | {call_ms:.1f} | {measured_ms:.1f} | {predicted:.0f} | {steps} |")

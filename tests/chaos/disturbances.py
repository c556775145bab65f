"""What is done to a run: faults injected at its sites, and signals to its processes at random instants."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults import REFUSABLE

ERRNOS = ("ENOSPC", "EIO", "EDQUOT", "EROFS")
SPAWN_ERRNOS = ("EAGAIN", "ENOMEM")
# site -> who comes by, and up to which visit a fault may wait: 2 to that power
PASSED_BY = {
    "disk.mkdir": (("learner",), 2), "disk.write": (("learner", "collector"), 5), "disk.link": (("learner",), 2),
    "disk.fsync": (("supervisor", "learner", "learner"), 6), "disk.rename": (("learner",), 4),
    "disk.remove": (("learner",), 2), "file.write": (("supervisor",), 3), "file.fsync": (("supervisor",), 2),
    "file.rename": (("supervisor",), 3), "record.write": (("supervisor",), 6), "record.mend": (("supervisor",), 0),
    "tensorboard.write": (("supervisor",), 5), "console.write": (("supervisor",), 5),
    "trace.write": (("supervisor",), 1), "run_dir.create": (("supervisor",), 0),
    "run_dir.lock": (("supervisor",), 0), "run_dir.aside": (("supervisor",), 2),
    "snapshot.mkdir": (("collector", "learner"), 2), "snapshot.adopt": (("learner",), 4),
    "snapshot.request": (("learner",), 2), "snapshot.release": (("learner",), 2),
    "memory.allocate": (("supervisor",), 2), "ring.reserved": (("collector",), 9),
    "ring.copied": (("collector",), 9), "ring.committed": (("collector",), 9),
    "rollout.reserved": (("collector",), 5), "rollout.committed": (("collector",), 5),
    "rollout.taken": (("learner",), 5), "mailbox.cleared": (("learner", "learner", "collector"), 8),
    "mailbox.copied": (("learner", "learner", "collector"), 8),
    "mailbox.published": (("learner", "learner", "collector"), 8), "message.read": (("supervisor",), 4),
    "supervisor.reap": (("supervisor",), 1), "spawn": (("supervisor",), 1),
    "child.start": (("learner", "collector", "evaluator"), 0), "rank.join": (("learner",), 0),
    "rank.gather": (("learner",), 6), "rank.reduce": (("learner",), 8),
}  # fmt: skip
# Not in any scene: W&B, a bad row, a run without `run_dir`, and a `train.log` that has grown too long.
NOT_PASSED = {
    *("memory.release", "wandb.write", "run_dir.latest", "train_log.trim"),
    *("video.spawn", "video.mkdir", "video.remove"),
}
# Ends of a run that has written its configuration and saved nothing: the next start moves its records aside.
LOSSES = tuple(f"{site}@role=supervisor,n=1:kill" for site in ("spawn", "message.read", "record.write"))
LOST_SHARE = 0.125  # of the runs, which would meet such an end by chance once in hundreds
# Sites that only scenes with this word pass by.
NEEDS = {
    "tensorboard": "log.tensorboard=true",
    "trace": "timing.trace=true",
    "rollout": "runner=appo",
    "rank": "runner.world_size=",
}
NEVER_HUNG = ("supervisor",)  # who would notice?
SIGNALS = ((signal.SIGKILL, 5), (signal.SIGSTOP, 3), (signal.SIGTERM, 2), (signal.SIGINT, 1), (signal.SIGHUP, 1))


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal to one process, or to all at once, `after_s` from the start; a stopped one goes on after `pause_s`."""

    number: int
    after_s: float
    victim: float  # in [0, 1): which one of those that live then
    is_for_all: bool = False
    pause_s: float = 0.0

    def __str__(self) -> str:
        who = "all" if self.is_for_all else f"process {self.victim:.2f}"
        return f"{signal.Signals(self.number).name} to {who} at {self.after_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Disturbance:
    """All that is done to one life of a run. `faults` is the value of OFFPOLICY_FAULT."""

    faults: str = ""
    signals: tuple[Signalled, ...] = ()

    def __str__(self) -> str:
        return "; ".join(filter(None, [self.faults, *map(str, self.signals)])) or "nothing"


def draw_lives(rng: random.Random, words: Sequence[str]) -> list[Disturbance]:
    """What is done to the lives of a run of these overrides, one after another; nothing to those that follow.

    Some begin with a life that saves nothing, and a fault where the next one moves its records aside.
    """
    is_lost = rng.random() < LOST_SHARE
    lost = [Disturbance(rng.choice(LOSSES)), Disturbance(fault_at(rng, "run_dir.aside"))] if is_lost else []
    return lost + [draw(rng, words) for _ in range(rng.choice((1, 2, 2, 3)))]


def draw(rng: random.Random, words: Sequence[str]) -> Disturbance:
    """One or two faults, one or two signals, or both, for a run of these overrides."""
    kind = rng.choices(("faults", "signals", "both"), (6, 3, 2))[0]
    faults = [draw_fault(rng, words) for _ in range(rng.choice((1, 1, 2)))] if kind != "signals" else []
    signals = [draw_signal(rng) for _ in range(rng.choice((1, 1, 2)))] if kind != "faults" else []
    return Disturbance(";".join(faults), tuple(sorted(signals, key=lambda one: one.after_s)))


def sites_of(words: Sequence[str]) -> list[str]:
    """The sites that a run of these overrides passes by."""
    needed = {site: NEEDS.get(site.split(".")[0], "") for site in PASSED_BY}
    return [site for site, word in needed.items() if any(given.startswith(word) for given in words)]


def draw_fault(rng: random.Random, words: Sequence[str]) -> str:
    """A fault at one of the sites that the run passes by."""
    return fault_at(rng, rng.choice(sites_of(words)))


def fault_at(rng: random.Random, site: str) -> str:
    """A fault at a site, in the grammar of OFFPOLICY_FAULT."""
    roles, most = PASSED_BY[site]
    role = rng.choice(roles)
    actions = ["kill"] * 5 + ["delay"] * 2 + ["exit"]
    if site in REFUSABLE:
        actions += ["errno"] * 8
    if role not in NEVER_HUNG:
        actions.append("hang")
    action = rng.choice(actions)
    if action == "errno":
        action = rng.choice(SPAWN_ERRNOS if "spawn" in site or site == "memory.allocate" else ERRNOS)
    action += {"delay": f":{rng.choice((5, 50, 500, 3000))}", "exit": f":{rng.choice((0, 3))}"}.get(action, "")
    return f"{site}@role={role},n={int(2 ** rng.uniform(0.0, most))}:{action}"


def draw_signal(rng: random.Random) -> Signalled:
    """A signal at some instant of a life, more often once it trains than while it starts."""
    number = rng.choices([number for number, _ in SIGNALS], [weight for _, weight in SIGNALS])[0]
    is_for_all = number != signal.SIGSTOP and rng.random() < 0.15
    after_s = rng.choice((rng.uniform(0.0, 5.0), rng.uniform(4.0, 12.0)))
    return Signalled(number, after_s, rng.random(), is_for_all, rng.uniform(0.2, 4.0))

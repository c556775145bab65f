"""The account is true: a delay that is put into one phase at a time is seen there, and elsewhere only as waiting.

The tables say what is late in which configuration; `attribution_rules.WAITS` says where which process then waits.
What a change must pass injects seconds and looks at sums. The nightly tests inject 25 ms and look at every phase: in
turns all others wait for the whole delay; where sides overlap, for what the late one's own waiting does not absorb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.processes.attribution_rules import Scene, Tour, links, make_tour, sums_of
from tests.processes.delay_plan import SMALL, Stretch, run_covered
from tests.processes.test_delays import POINT, SLOW_STEP, TWO_RANKS, train

pytestmark = pytest.mark.mp

# Overrides.
IN_TURNS, AT_ONCE = "collect.mode=alternate", "collect.mode=overlap"
TWO = (POINT, *TWO_RANKS)
PREFETCH = (POINT, "runner=double_buffer")
WHEN_ASKED = (*PREFETCH, "replay.slots=1")
# One update per iteration; the last two are their defaults: scenes set them, but only SAC and TD3 know them.
ONCE = ("algo.epochs=1", "algo.num_minibatches=1", "algo.learning_starts=1000", "algo.batch_size=256")
ROLLOUTS = (POINT, "algo=appo", *ONCE, "env.num_envs=1", "rollout.length=2")
HAND = ("algo=hora", "env=hand_rotation", "algo.encoder_dims=[8]", "algo.latent_dim=3", "env.kwargs.num_threads=1")
TEACH = (*HAND, *ONCE, "env.num_envs=4", "rollout.length=2")
ADAPT = (*TEACH, "stage=adapt", "teacher=teacher/run")
SHORT_EPISODES = ("env.id=tests.toys:Counter-v0", "env.kwargs.truncate_at=2")
EVALUATIONS = (*SHORT_EPISODES, "eval.every=1", "eval.episodes=1")
CHECKPOINTS = (*SHORT_EPISODES, "checkpoint.every=1", "checkpoint.replay=false")
SLOW = (SLOW_STEP, "env.kwargs.step_ms=20")

# Phases that are late.
WORK = ("learner.replay_sample", "learner.h2d", "learner.train", "learner.weight_publish")
LEARNER = ("learner.collector_wait", *WORK, "learner.sync_coordination", "learner.other")
ACT = ("collector.weight_apply", "collector.action_select", "collector.env_step", "collector.replay_write")
COLLECTOR = (*ACT, "collector.handshake", "collector.other")
FEW = ("learner.train", "learner.weight_publish", "collector.env_step", "collector.action_select")
SAVED = ("learner.checkpoint", "collector.snapshot")
PACKED = ("packer.pack", "learner.replay_sample", *FEW)
RANK_0 = ("learner.train", "learner.param_sync", "learner.weight_publish", "learner.sync_coordination")
RANK_1 = ("rank1.train", "rank1.param_sync", "rank1.replay_sample", "rank1.h2d")
RANKS = (*RANK_0, *RANK_1, "collector.env_step")

# What else decides: who is there, and how much of a collector's time is an iteration of the learner.
WITH_PACKER: Any = {"tracks": ("learner", "collector", "packer")}
WITH_RANK_1: Any = {"tracks": ("learner", "rank1", "collector")}
TWO_STEPS: Any = {"steps": 2.0, "transitions": 2, "usual": 1000}
TWO_STEPS_OF_FOUR: Any = {"steps": 2.0, "transitions": 8, "usual": 500}
WITH_RESETS: Any = {"steps": 1.5}  # every other transition is followed by a reset

SCENES: dict[str, Scene] = {
    # configuration                                             in turns  late phases
    "single":              Scene((POINT, IN_TURNS),                 True, LEARNER),
    "single, collector":   Scene((POINT, IN_TURNS),                 True, COLLECTOR),
    "single, td3":         Scene((POINT, IN_TURNS, "algo=td3"),     True, FEW),
    "single, overlap":     Scene((POINT, AT_ONCE),                 False, (*FEW, "learner.replay_sample")),
    "evaluations":         Scene((*EVALUATIONS, IN_TURNS),          True, ("learner.evaluation",), **WITH_RESETS),
    "checkpoints":         Scene((*CHECKPOINTS, IN_TURNS),          True, SAVED, **WITH_RESETS),
    "reports":             Scene((*SLOW, AT_ONCE),                 False, ("learner.log",), usual=90),
    "packed when asked":   Scene((*WHEN_ASKED, IN_TURNS),           True, PACKED, **WITH_PACKER),
    "packed ahead":        Scene((*PREFETCH, AT_ONCE),             False, PACKED, **WITH_PACKER),
    "packed ahead, td3":   Scene((*PREFETCH, AT_ONCE, "algo=td3"), False, PACKED[:3], **WITH_PACKER),
    "two ranks":           Scene((*TWO, AT_ONCE),                  False, RANKS, **WITH_RANK_1),
    "two ranks, in turns": Scene((*TWO, IN_TURNS),                  True, RANKS[4:], **WITH_RANK_1),
    "rollouts":            Scene((*ROLLOUTS, IN_TURNS),             True, (*WORK, *ACT), **TWO_STEPS),
    "rollouts, free":      Scene((*ROLLOUTS, "collect.mode=free"), False, FEW, **TWO_STEPS),
    "hora, teach":         Scene((*TEACH, IN_TURNS),                True, FEW, **TWO_STEPS_OF_FOUR),
    "hora, adapt":         Scene((*ADAPT, IN_TURNS),                True, FEW, **TWO_STEPS_OF_FOUR),
}  # fmt: skip


TourOf = Callable[[str], Tour]


@pytest.fixture(scope="module")
def tour_of(tmp_path_factory: pytest.TempPathFactory) -> TourOf:
    """`tour_of(scene)`: its tour, made when it is first asked for."""
    done: dict[str, Tour] = {}

    def tour(name: str) -> Tour:
        if name not in done:
            directory = tmp_path_factory.mktemp("tour")
            if "stage=adapt" in SCENES[name].overrides:
                (directory / "teacher").mkdir()
                train(directory / "teacher", (*SMALL, *TEACH, "total_timesteps=64"), {})
            done[name] = make_tour(directory, SCENES[name])
        return done[name]

    return tour


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.promise("account-true")
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("scene", "late"), [(name, late) for name, scene in SCENES.items() for late in scene.late])
def test_every_phase_of_every_runner_holds_its_own_delay(tour_of: TourOf, scene: str, late: str) -> None:
    violations = tour_of(scene).violations(late)
    assert not violations, "\n".join(violations)


ITERATIONS, LATE_MS = 22, 100.0  # of a stretch, and per iteration: two seconds or more per stretch
Late = Mapping[str, float]  # ms by phase; per vector step of a collector


def both(*phases: str) -> dict[str, float]:
    return dict.fromkeys(phases, LATE_MS)


# What is late at a time. Two sides that overlap are late together, and neither waits for the other one for long.
SUMS: dict[str, tuple[Scene, list[Late]]] = {
    "single, overlap": (
        SCENES["single, overlap"],
        [
            both("learner.train"),
            both("collector.env_step"),
            both("learner.train", "collector.env_step"),
            both("learner.replay_sample", "collector.action_select"),
            both("learner.h2d", "collector.replay_write"),
            both("learner.weight_publish", "collector.weight_apply"),
            both("learner.sync_coordination", "collector.handshake"),
            both("learner.other", "collector.other"),
        ],
    ),
    "packed ahead": (SCENES["packed ahead"], [both("packer.pack"), both("learner.train")]),
    "two ranks": (SCENES["two ranks"], [both("rank1.train"), both("learner.train"), both("learner.param_sync")]),
    "rollouts, free": (
        SCENES["rollouts, free"],
        [
            {"learner.train": LATE_MS, "collector.env_step": LATE_MS / 2},
            {"learner.weight_publish": LATE_MS, "collector.action_select": LATE_MS / 2},
            {"learner.replay_sample": LATE_MS, "collector.replay_write": LATE_MS / 2},
        ],
    ),
}


@pytest.fixture(scope="module")
def stretches_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Stretch]]:
    """`stretches_of(name)`: the stretches of one of SUMS, in one run that is made when it is first asked for."""
    done: dict[str, list[Stretch]] = {}

    def stretches(name: str) -> list[Stretch]:
        if name not in done:
            scene, plan = SUMS[name]
            directory, words = tmp_path_factory.mktemp("sums"), (*scene.overrides, "log.every_s=0.1")
            done[name] = run_covered(directory, words, [(late, ITERATIONS) for late in plan], scene.transitions)
        return done[name]

    return stretches


@pytest.mark.promise("account-true", "learner-phases", "collector-phases", "verdict-right")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, at, id=f"{name}: {' and '.join(late)}")
        for name in SUMS
        for at, late in enumerate(SUMS[name][1])
    ],
)
def test_a_delay_is_seen_in_its_phase_and_in_no_other(
    stretches_of: Callable[[str], list[Stretch]], name: str, number: int
) -> None:
    scene, plan = SUMS[name]
    late, near = plan[number], [phase for each in plan[max(0, number - 1) : number + 2] for phase in each]
    sums_ms, injected_ms = sums_of(scene, stretches_of(name)[number]), ITERATIONS * LATE_MS
    assert {phase: ms for phase, ms in sums_ms.items() if phase in late and ms < 0.9 * injected_ms} == {}
    elsewhere = sums_ms.keys() - {*near, *links(scene, near)}
    assert {phase: sums_ms[phase] for phase in elsewhere if sums_ms[phase] > injected_ms / 2} == {}
    if len(late) == 1:
        assert {phase: sums_ms[phase] for phase in links(scene, late) if sums_ms[phase] < injected_ms / 2} == {}

"""A preset without a learning curve of three seeds says in its file that it is not judged, and no other does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.learning.runs import FINISHED, runs_of
from benchmarks.learning.studies import BY_KEY
from tests.conftest import REPOSITORY

CONF = REPOSITORY / "conf"
FEWEST_SEEDS = 3
MARK = "Not judged"
PICTURES = {"two_sides", "two_sides_rollouts"}  # their environment only sleeps
# The study that trains with the values of a file; None: there is none.
STUDIES: Mapping[str, str | None] = {
    "algo/sac": "sac-pendulum", "algo/td3": "td3-pendulum", "algo/flashsac": "flashsac-halfcheetah",
    "algo/appo": "appo-cartpole", "algo/hora": "hora-teacher", "algo_env/appo_hand_rotation": "hora-blind",
    "algo_env/appo_inverted_pendulum": "appo-inverted-pendulum", "algo_env/appo_mujoco": "appo-halfcheetah",
    "algo_env/appo_pendulum": "appo-pendulum", "algo_env/hora_hand_rotation": "hora-teacher",
    "algo_env/sac_cartpole": "sac-cartpole", "experiment/flashsac_published": None,
    "experiment/halfcheetah_flashsac": "flashsac-halfcheetah", "experiment/halfcheetah_sac": "sac-halfcheetah",
    "experiment/halfcheetah_td3": "td3-halfcheetah", "experiment/halfcheetah_td3_author": None,
    "experiment/hora_many_cores": None, "experiment/mjlab_cartpole": None, "experiment/pendulum_sac_zoo": None,
    "experiment/unilab_go2": None,
}  # fmt: skip


def presets() -> Iterator[str]:
    """The files with values of an algorithm: `experiment/halfcheetah_sac`."""
    for group in ("algo", "algo_env", "experiment"):
        for path in sorted((CONF / group).glob("*.yaml")):
            if path.stem not in PICTURES:
                yield f"{group}/{path.stem}"


def test_every_preset_has_a_study_or_is_known_to_have_none() -> None:
    assert set(presets()) == STUDIES.keys()


def test_a_preset_says_whether_it_is_judged() -> None:
    for preset, key in STUDIES.items():
        runs = {} if key is None else runs_of(BY_KEY[key])
        seeds = sum(run["status"] == FINISHED for run in runs.values())
        head = [line for line in (CONF / f"{preset}.yaml").read_text().splitlines() if line.startswith("#")]
        says_not = MARK in " ".join(line.removeprefix("#").strip() for line in head)
        assert says_not == (seeds < FEWEST_SEEDS), f"{preset}: {seeds} seeds have finished"

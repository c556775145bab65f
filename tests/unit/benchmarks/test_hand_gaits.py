"""Scripted gaits of the hand: what they move, and what a search of them finds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import hand_gaits
from benchmarks.learning.hand_gaits import OPEN, PRESSING, Gait, Played, held_out, play, searched
from benchmarks.learning.results import path_of

TOGETHER = Gait("together", period=10, amplitude=0.5, duty=0.5, press=0.0, lift=1.0)


def test_all_fingers_press_on_the_way_and_are_open_on_the_way_back() -> None:
    fingers = np.array([TOGETHER.targets(step).reshape(4, 4) for step in range(10)])
    assert (fingers == fingers[:, :1]).all()
    assert np.allclose(fingers[:5, 0, 1:], PRESSING)
    assert np.allclose(fingers[5:, 0, 1:], OPEN)
    assert np.allclose(fingers[:, 0, 0], [0.5, 0.3, 0.1, -0.1, -0.3, -0.5, -0.3, -0.1, 0.1, 0.3])


def test_of_a_wave_one_finger_is_a_quarter_behind_the_next() -> None:
    wave = TOGETHER._replace(order="wave", period=8)
    for step in range(8):
        fingers = wave.targets(step).reshape(4, 4)
        assert np.allclose(fingers[0], TOGETHER._replace(period=8).targets(step)[:4])
        assert np.allclose(fingers[1], wave.targets(step + 2)[:4])


def test_a_gait_turns_the_cube_of_the_simple_task_and_drops_the_object_of_the_other() -> None:
    simple = play([TOGETHER], "spin", "held_out", range(8))
    assert np.median(simple.rotation) > 25.0
    hard = play([TOGETHER], "rotation", "held_out", range(8))
    assert np.median(hard.rotation) < 2.0
    assert hard.rotation.shape == (1, 8)


def test_gaits_played_together_do_as_each_alone() -> None:
    gaits, seeds = [TOGETHER, TOGETHER._replace(order="pairs", period=20)], [3, 4]
    both = play(gaits, "spin", "train", seeds)
    for index, gait in enumerate(gaits):
        assert np.array_equal(play([gait], "spin", "train", seeds).rotation[0], both.rotation[index])


def test_the_best_of_a_search_are_held_against_held_out_physics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_gaits, "FINALISTS", 1)
    monkeypatch.setattr(hand_gaits, "HELD_OUT_EPISODES", 4)
    gaits = [TOGETHER, TOGETHER._replace(amplitude=0.0), TOGETHER._replace(period=40)]
    rotation, ep_return = np.array([[9.0], [0.0], [1.0]]), np.array([[1.0], [0.0], [5.0]])
    found = held_out(gaits, Played(ep_return, rotation), "spin")
    assert found["gait, rotation"]["gait"]["period"] == 10
    assert {one["gait"]["amplitude"] for one in found.values()} == {0.5}  # the one that never turns is no finalist
    assert found["gait, rotation"]["episodes"] == 4
    assert found["gait, rotation"]["searched"] == 3


def test_a_search_writes_down_what_it_found(
    monkeypatch: pytest.MonkeyPatch, results_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (
        ("HELD_OUT_EPISODES", 2),
        ("SEARCH_EPISODES", 2),
        ("HANDS_AT_ONCE", 4),
        ("MAX_EPISODE_STEPS", 5),
    ):
        monkeypatch.setattr(hand_gaits, name, value)
    gaits, found = searched("spin", 5)
    assert len(set(gaits)) == 5
    assert found.rotation.shape == (5, 2)
    hand_gaits.main(3)
    written = json.loads(path_of("nothing-learnt").read_text())
    assert set(written) == set(hand_gaits.TASKS.values())
    assert "spin: best gait, rotation: return" in capsys.readouterr().out
    assert results_directory.is_dir()

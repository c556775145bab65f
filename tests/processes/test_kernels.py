"""Real runs report how their updates are made, and make them so again when they are resumed."""

from __future__ import annotations

import pytest
import torch

from offpolicy.algos.registry import make_learner
from offpolicy.config.algorithms import AlgoConfig
from offpolicy.training.learner_process import describe
from offpolicy.types import SpaceSpec
from tests.processes.conftest import TINY, LiveRun, StartRun

pytestmark = pytest.mark.mp
TEXTBOOK = "updates: textbook, because of algo.kernels=textbook"


def test_a_run_says_which_kernels_it_has(finished_run: LiveRun) -> None:
    spec = SpaceSpec(4, 2, (-1.0, -1.0), (1.0, 1.0))
    learner = make_learner(AlgoConfig(hidden_dims=(16, 16)), spec, torch.device("cpu"), seed=1)
    assert f"updates: {describe(learner)}" in finished_run.out.splitlines()
    assert finished_run.summary()["kernels"] == learner.kernels


@pytest.mark.slow
def test_a_run_of_the_textbook_goes_on_as_one(start_run: StartRun) -> None:
    train = ("train", *TINY, "algo.kernels=textbook", "device=cpu")
    for command, steps in ((train, 300), (("resume", "run"), 400)):
        run = start_run(f"total_timesteps={steps}", command=command)
        code, out, err = run.finish()
        assert (code, err) == (0, "")
        assert TEXTBOOK in out.splitlines()
        assert run.summary()["kernels"] == "textbook"

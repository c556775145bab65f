"""`python -m benchmarks.learning.hand_inference RUN`: what the joints of a hand tell of what only a simulation knows.

The policy of the run acts with the physics of training. Two networks then learn to infer `privileged`: one from the
last three frames of the joints, which every policy observes, one from the thirty that a student observes. What each
explains of the variance in other episodes says how much a memory can add.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.learning.results import save
from offpolicy.collect.evaluation import Actor
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.envs.hand.env import HandRotationVector
from offpolicy.envs.hand.rotation import HISTORY_FRAMES
from offpolicy.types import HISTORY, OBS, PRIVILEGED, Float32

Ints, Flags = NDArray[np.int64], NDArray[np.bool_]
HANDS, STEPS, SEED = 256, 6_000, 70_000
EVERY = 20  # steps between two rows of a hand: neighbours tell little that is new
OTHERS = 0.25  # of the hands, whose episodes are not learnt from
HIDDEN, EPOCHS, BATCH_SIZE, LR, PATIENCE = 256, 60, 512, 1e-3, 6
INPUTS = {"three frames": OBS, "thirty frames": HISTORY}
# Columns of `privileged` that are one thing: offpolicy/envs/hand/rotation.py.
QUANTITIES = {
    "place of the object": slice(0, 3),
    "size": slice(3, 4),
    "mass": slice(4, 5),
    "friction": slice(5, 6),
    "centre of mass": slice(6, 9),
    "gain of the actuators": slice(9, 10),
    "damping of the actuators": slice(10, 11),
    "direction of gravity": slice(11, 14),
    "shape": slice(14, 17),
}


def observed(act: Actor, groups: tuple[str, ...], hands: int, steps: int) -> tuple[dict[str, Float32], Ints]:
    """Returns rows by group, and their hands, of a policy that acts on these groups; those with a full history."""
    vector = HandRotationVector(hands, physics="train", task="rotation", num_threads=2)
    obs, _ = vector.reset(seed=SEED)
    age = np.zeros(hands, np.int64)
    kept: list[tuple[dict[str, Float32], Any]] = []
    for _ in range(steps):
        flat = np.concatenate([obs[name].reshape(hands, -1) for name in groups], axis=1)
        obs, _, terminated, truncated, _ = vector.step(act(flat))
        age = np.where(terminated | truncated, -1, age + 1)  # the next step begins an episode
        is_kept = (age >= HISTORY_FRAMES) & (age % EVERY == 0)
        if is_kept.any():
            rows = {name: values[is_kept].reshape(int(is_kept.sum()), -1) for name, values in obs.items()}
            kept.append((rows, np.flatnonzero(is_kept)))
    named = {name: np.concatenate([rows[name] for rows, _ in kept]) for name in obs}
    return named, np.concatenate([hand for _, hand in kept])


def explained(inputs: Float32, targets: Float32, is_other: Flags) -> Float32:
    """Returns the part of each target's variance that a network infers in the other rows. [R, D], [R, T] -> [T].

    It learns from the rest, of which the last eighth says when to end.
    """
    torch.manual_seed(0)
    learnt, others = _standardised(inputs, is_other), _standardised(targets, is_other)
    num_learnt = int((~is_other).sum())
    order = torch.randperm(num_learnt)
    train, last = order[: num_learnt * 7 // 8], order[num_learnt * 7 // 8 :]
    net = nn.Sequential(
        *(nn.Linear(inputs.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, targets.shape[1]),
    )
    optimiser = torch.optim.AdamW(net.parameters(), LR, weight_decay=1e-2)
    best, best_loss, since = net.state_dict(), np.inf, 0
    x, y = learnt[~is_other], others[~is_other]
    for _ in range(EPOCHS):
        for rows in train[torch.randperm(len(train))].split(BATCH_SIZE):
            optimiser.zero_grad()
            nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            optimiser.step()
        with torch.inference_mode():
            loss = float(nn.functional.mse_loss(net(x[last]), y[last]))
        best_loss, since = (loss, 0) if loss < best_loss else (best_loss, since + 1)
        if since == 0:
            best = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        if since == PATIENCE:
            break
    net.load_state_dict(best)
    with torch.inference_mode():
        error = (net(learnt[is_other]) - others[is_other]).square().mean(0) / others[is_other].var(0)
    return (1.0 - error).numpy()


def _standardised(values: Float32, is_other: Flags) -> Tensor:
    """Returns the columns with mean 0 and standard deviation 1 in the rows that are learnt from."""
    learnt = values[~is_other]
    return torch.from_numpy((values - learnt.mean(0)) / np.maximum(learnt.std(0), 1e-6))


def main(path: str, hands: int = HANDS, steps: int = STEPS) -> None:
    """Measures the policy of a run of `env=hand_rotation`, shows the table and saves it for docs/results.md."""
    run = SavedRun.find(Path(path), PolicyChoice(SEED, step=None, device="cpu", overrides={}))
    rows, hand = observed(run.actor("cpu"), run.spec.obs_keys, hands, steps)
    is_other = hand >= hands * (1.0 - OTHERS)
    found = {name: explained(rows[group], rows[PRIVILEGED], is_other) for name, group in INPUTS.items()}
    table = {
        what: {name: float(each[columns].mean()) for name, each in found.items()}
        for what, columns in QUANTITIES.items()
    }
    for what, each in table.items():
        print(f"{what:<26}" + "".join(f"{name} {value:6.2f}   " for name, value in each.items()))
    found_in = {"env_steps": run.checkpoint.env_steps, "hands": hands, "rows": len(is_other)}
    save("hand-inference", found_in | {"explained": table})


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""In-hand rotation: four fingers turn an object about the palm's axis, under physics that differ per episode.

`HandRotation` is the task of HORA (arXiv:2210.04887): the object falls when the hand lets go of it. In `HandSpin` it
stands on the palm.
"""

from __future__ import annotations

import gymnasium

MAX_EPISODE_STEPS = 400  # 20 s

for _id, _task in (("HandRotation-v1", "rotation"), ("HandSpin-v0", "spin")):
    if _id not in gymnasium.registry:
        gymnasium.register(
            _id,
            entry_point="offpolicy.envs.hand.env:HandRotation",
            vector_entry_point="offpolicy.envs.hand.env:HandRotationVector",
            max_episode_steps=MAX_EPISODE_STEPS,
            kwargs={"task": _task},
        )

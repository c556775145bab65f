"""In-hand rotation: a hand of four fingers turns a cube about the vertical, under physics that differ per episode."""

from __future__ import annotations

import gymnasium

ENV_ID = "HandRotation-v0"
MAX_EPISODE_STEPS = 400  # 20 s

if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="offpolicy.envs.hand.env:HandRotation",
        vector_entry_point="offpolicy.envs.hand.env:HandRotationVector",
        max_episode_steps=MAX_EPISODE_STEPS,
    )

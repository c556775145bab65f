"""Gymnasium's MuJoCo v5 tasks, all environments in one batch of MuJoCo (`env.vectorization=mujoco`)."""

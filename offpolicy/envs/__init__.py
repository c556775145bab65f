"""Environments behind one door: vectorised Gymnasium, actions in [-1, 1], float32 observations, NEXT_STEP autoreset."""

"""Vectorised Gymnasium behind one interface: actions in [-1, 1], float32 observations, NEXT_STEP autoreset."""

"""Replay: the row layout, the shared rings, the rate limiter and the batch sources."""

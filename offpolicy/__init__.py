"""Off-policy reinforcement learning with decomposed timing."""

__version__ = "0.1.0"

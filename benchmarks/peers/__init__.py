"""SAC on HalfCheetah-v5 by several trainers, the same work on the same two cores."""

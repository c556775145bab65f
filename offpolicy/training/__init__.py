"""What the loop calls besides learning: weight publisher, checkpointer, reporter, evaluators."""

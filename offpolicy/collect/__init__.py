"""Collecting: THE collector loop, its policy, its row writer, its episodes; and evaluation."""

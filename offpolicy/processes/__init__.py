"""Processes and what they share: memory, wake events, the control page, weights, reports and their supervisor."""

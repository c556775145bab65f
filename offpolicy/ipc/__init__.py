"""Processes and what they share: memory, doorbells, the control page, weights, reports and their supervisor."""

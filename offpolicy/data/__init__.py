"""Replay: the row layout, the shared ring, the pace of updates and the sources of batches."""

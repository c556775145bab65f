"""What each part costs, measured alone: time per call, memory per process, time until something is seen."""

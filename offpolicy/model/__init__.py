"""What evaluates the records of a run: rates of a window, prediction, verdict and advice. No torch."""

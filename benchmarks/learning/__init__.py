"""Learning curves: which presets learn what, with seeds, beside published numbers and policies that learn nothing."""

"""Composition roots: each topology is wired here, in one short file, and nothing imports this package."""

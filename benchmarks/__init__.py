"""Measurements of speed and memory: `make bench-peers` against other trainers, `make bench` part by part."""

"""Collectors on other hosts: Ray actors that collect when they are called, and the process that calls them."""

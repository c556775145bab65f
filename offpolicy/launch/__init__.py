"""From a configuration to processes: preflight, resources, run directory, monitor."""

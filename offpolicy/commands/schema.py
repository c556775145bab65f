"""`offpolicy schema`: the JSON Schema of the configuration, for editors."""

from __future__ import annotations

import json
import sys

from offpolicy.config.json_schema import json_schema, section_names
from offpolicy.errors import EXIT_OK, ConfigError


def schema(section: str | None) -> int:
    """Prints the schema of a configuration, or of a file of one section. Raises `ConfigError` for an unknown one."""
    if section is not None and section not in section_names():
        raise ConfigError(f"--section: got {section!r}, allowed one of {', '.join(section_names())}")
    sys.stdout.write(json.dumps(json_schema(section), indent=2) + "\n")
    return EXIT_OK

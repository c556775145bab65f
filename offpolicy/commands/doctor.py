"""`offpolicy doctor`: what is installed, what the machine gives, what will be slow, and the fix of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from offpolicy import __version__
from offpolicy.errors import EXIT_OK, ConfigError
from offpolicy.launch.finding import Finding, Level
from offpolicy.launch.host_check import host_findings
from offpolicy.launch.installation import drawing, installation, torch_findings

NAME_WIDTH = 17
WORDS = {
    Level.BROKEN: "training cannot work",
    Level.BAD: "some runs fail, or are wrong",
    Level.SLOW: "slower than it must be",
    Level.NOTE: "worth knowing",
}


def doctor(*, as_json: bool) -> int:
    """Prints every finding, and returns 2 if no training can work here, else 0."""
    found = [*installation(), *torch_findings(), *host_findings(), *drawing()]
    can_train = not any(each.level == Level.BROKEN for each in found)
    if as_json:
        content = {"offpolicy": __version__, "can_train": can_train, "findings": [each.to_mapping() for each in found]}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(lines(found)) + "\n")
    return EXIT_OK if can_train else ConfigError.exit_code


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """Yields the findings by section, and what to do, the worst first."""
    for section in dict.fromkeys(each.section for each in found):
        yield section
        for each in found:
            if each.section == section:
                yield f"  {each.level:<6} {each.name:<{NAME_WIDTH}} {each.value}"
    for level, words in WORDS.items():
        own = [each for each in found if each.level == level]
        if own:
            yield f"{words}:"
        yield from (f"  {each.name}: {each.fix}" for each in own)
    if not any(each.level == Level.BROKEN for each in found):
        yield "training works here: offpolicy train algo=sac"

"""`python -m offpolicy` is the command `offpolicy`."""

from __future__ import annotations

import sys

from offpolicy.cli import main

if __name__ == "__main__":
    sys.exit(main())

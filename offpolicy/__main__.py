"""`python -m offpolicy` is the command `offpolicy`."""

from __future__ import annotations

import sys

from offpolicy.start import drop_save_requests, interrupts_exit


def main() -> int:
    """Runs the command; a Ctrl-C during the imports ends it without a traceback."""
    drop_save_requests()
    with interrupts_exit():
        from offpolicy.cli import main as command
    code = command()
    from offpolicy.children import is_held, leave_now

    if is_held():  # an environment that was evaluated, played or recorded here has left something running
        leave_now(code)
    return code


if __name__ == "__main__":
    sys.exit(main())

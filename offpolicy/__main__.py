"""`python -m offpolicy` is the command `offpolicy`."""

from __future__ import annotations

import sys
import traceback

from offpolicy.processes.signals import drop_save_requests, interrupts_exit


def main() -> int:
    """Runs the command; a Ctrl-C during the imports ends it without a traceback."""
    drop_save_requests()
    with interrupts_exit():
        from offpolicy.cli import main as command
        from offpolicy.processes.child import GRACE_S, is_held, leave_now
    try:
        code = command()
    except Exception:  # as Python does, which would then wait for what is left running
        traceback.print_exc()
        code = 1
    if is_held(GRACE_S):  # by what an environment that was evaluated, played or recorded here has left running
        from multiprocessing import active_children

        for process in active_children():
            process.kill()
        leave_now(code)
    return code


if __name__ == "__main__":
    sys.exit(main())

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offpolicy.errors import ConfigError, EnvFailure
from offpolicy.processes.fork_server import ChildError, ChildTimeout, ForkServer, call_in_child
from tests.unit.processes.conftest import wait_until

MODULE = """
import atexit, os, signal, subprocess, sys, threading
from offpolicy.errors import ConfigError, EnvFailure

def echo(payload):
    print('{"result": "printed"}', flush=True)
    os.write(1, b"written")
    return payload

def refuse(problems): raise ConfigError(problems)
def fail(_): raise EnvFailure("step 3")
def stumble(_): return [][0]
def fail_and_abort_at_exit(_):
    atexit.register(os.abort)
    raise EnvFailure("step 4")
def leave(_): sys.exit('gone')
def die(number):
    print("about to die", flush=True)
    os.kill(os.getpid(), number)
def quit_at_once(code): os._exit(code)
def hang(_): threading.Event().wait()
def is_blocked(_): return signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, [])
def survive(number):
    os.kill(os.getpid(), number)
    return number
def start_sleepers(_): return [subprocess.Popen(["sleep", "60"], start_new_session=new).pid for new in (False, True)]
def leave_running(_):
    import multiprocessing
    threading.Thread(target=threading.Event().wait).start()
    multiprocessing.get_context("fork").Process(target=signal.pause).start()
    return "done"
def leave_soon_done(path):
    import atexit, concurrent.futures, multiprocessing, time
    def write(name, after_s=0.0):
        time.sleep(after_s)
        open(path + name, "w").close()
    threading.Thread(target=write, args=("thread", 0.3)).start()
    multiprocessing.get_context("fork").Process(target=write, args=("process", 0.3)).start()
    concurrent.futures.ThreadPoolExecutor(1).submit(write, "pool", 0.3)
    atexit.register(write, "exit")
def terminate_forked(_):
    import multiprocessing
    context = multiprocessing.get_context("fork")
    event = context.Event()
    process = context.Process(target=lambda: (event.set(), signal.pause(), signal.pause()))
    process.start()
    event.wait()
    process.terminate()
    process.join(20)
    return process.exitcode
def write_pid(path):
    with open(path, "w") as file: print(os.getpid(), file=file)
    threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "callee.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def test_call_returns_the_json_result_whatever_the_function_prints() -> None:
    payload: dict[str, Any] = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
    assert call_in_child("callee:echo", payload) == payload
    with ForkServer([], os.environ) as server:
        assert call_in_child("callee:echo", payload, server=server) == payload
        assert server.is_ready(20.0)  # it is left to its owner


def test_the_error_is_raised_also_where_taking_down_the_interpreter_would_abort_the_child() -> None:
    """A thread that is left in a call of torch does that."""
    with pytest.raises(EnvFailure, match=r"^step 4$"):
        call_in_child("callee:fail_and_abort_at_exit")


def test_a_process_that_leaves_now_has_said_everything_and_keeps_its_exit_code() -> None:
    for closing in ("", "sys.stdout.close()", "sys.stdout = None"):
        code = f"import atexit, os, sys; atexit.register(os.abort); print('this', flush={bool(closing)}); {closing}"
        code += "\nfrom offpolicy.processes.child import leave_now; leave_now(70)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (70, "this\n")


def test_errors_of_the_library_are_raised_again_with_their_type_and_text() -> None:
    problems = ["a: got 1", "b: got 2"]
    with pytest.raises(ConfigError) as caught:
        call_in_child("callee:refuse", problems)
    assert caught.value.problems == tuple(problems)
    with pytest.raises(EnvFailure, match=r"^step 3$"):
        call_in_child("callee:fail")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("callee:stumble", "IndexError: list index out of range"),
        ("callee:leave", "SystemExit: gone"),
        ("no_such_module:nothing", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_other_errors_are_reported_with_type_and_traceback(target: str, reason: str) -> None:
    with pytest.raises(ChildError) as caught:
        call_in_child(target)
    assert caught.value.reason == f"raised {reason}"
    assert "Traceback (most recent call last)" in caught.value.output


def test_a_child_that_dies_is_reported_with_its_signal_and_its_output() -> None:
    with pytest.raises(ChildError) as caught:
        call_in_child("callee:die", int(signal.SIGKILL))
    assert (str(caught.value), caught.value.output) == ("was killed by SIGKILL", "about to die")
    with pytest.raises(ChildError, match="was killed by SIGSEGV") as caught:
        call_in_child("callee:die", int(signal.SIGSEGV))
    assert "in die" in caught.value.output  # the stack


def test_a_child_that_exits_before_its_answer_is_reported() -> None:
    for code in (0, 3):
        with pytest.raises(ChildError, match=rf"^exited with code {code}$"):
            call_in_child("callee:quit_at_once", code)


def test_a_child_that_does_not_answer_is_killed() -> None:
    with pytest.raises(ChildTimeout, match=r"^gave no answer within 1 s$"):
        call_in_child("callee:hang", timeout_s=1.0)


def test_child_dies_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    code = (
        f"from offpolicy.processes.fork_server import call_in_child; call_in_child('callee:write_pid', {str(path)!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ) as parent:
        wait_until(lambda: path.is_file() and path.read_text().endswith("\n"))
        parent.kill()
    assert is_gone(int(path.read_text()))


def is_gone(pid: int) -> bool:
    """True once the process has ended; a zombie counts."""
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
    return True


def test_what_a_call_has_started_ends_with_it_also_in_another_session() -> None:
    pids = call_in_child("callee:start_sleepers")
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_the_signals_of_a_run_do_nothing_to_a_call() -> None:
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        assert call_in_child("callee:survive", int(number)) == number
    assert not call_in_child("callee:is_blocked")


def test_what_a_function_has_left_running_does_not_hold_its_answer() -> None:
    """The interpreter waits for threads and processes at its end, for ever if they never end."""
    assert call_in_child("callee:leave_running", timeout_s=20) == "done"


def test_what_soon_ends_by_itself_ends_what_it_does(tmp_path: Path) -> None:
    call_in_child("callee:leave_soon_done", f"{tmp_path}/of-")
    assert {path.name for path in tmp_path.glob("of-*")} == {"of-thread", "of-process", "of-pool", "of-exit"}


def test_a_process_that_a_function_has_forked_can_be_terminated() -> None:
    """It inherits that the run's signals do nothing; an environment's `close` waited for it for ever."""
    assert call_in_child("callee:terminate_forked", timeout_s=40) == -signal.SIGTERM

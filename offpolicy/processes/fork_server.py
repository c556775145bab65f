"""The fork server of a run: one process that has imported torch, of which all processes of the run are forks.

An interpreter that imports torch takes seconds of CPU, a fork of one that has done so takes milliseconds (ADR 1). The
server has one thread, computes nothing and never initialises CUDA, so a fork inherits no lock that another thread holds
and no pool of threads. It forks twice and ends the process between: the kernel gives the new process to the nearest
subreaper, which is the process that asked for the fork. A request is a number of descriptors, which follow, and its
answer a pid, or an errno below 0, all in decimal digits.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from offpolicy import errors, fault
from offpolicy.errors import StartError
from offpolicy.processes.child import die_with_parent, main, show_name
from offpolicy.processes.children import (
    KILL_TIMEOUT_S,
    Child,
    adopting,
    describe_exit,
    end_adopted,
    own_children,
    scratch_file,
    tail_of,
    wait_readable,
)
from offpolicy.processes.signals import cleaned_up, signals_blocked

# Rounds in which a thread of libgomp waits for the others before it gives its core away (ADR 45). By default it spins
# for milliseconds, and an update takes several times as long where another program has the core of one of them.
SPIN_ROUNDS = 3_000
LONG_SPIN_ROUNDS = 60_000  # of a learner that tries its numbers of threads; they stay awake between two products
MESSAGE_BYTES = 64  # of a request or an answer, at most
READY = 0  # the answer that the server gives by itself, once it has imported everything
MOST_FDS = 200  # descriptors in one message; the kernel takes 253
TIMEOUT_S = 120.0  # of an answer of the server, or to a call, unless another one is set
ADOPTION_POLL_S = 0.0002
_ROOT = str(Path(__file__).resolve().parents[2])
# The root is on the path just for this import: the server must run our code, but find nothing else there.
_SERVE = (
    "import sys; _, fd, root, parent, *modules = sys.argv; sys.path.insert(0, root);"
    " from offpolicy.processes.fork_server import serve; sys.path.pop(0); serve(int(fd), int(parent), modules)"
)


class ForkServer:
    """The client's side. Use it on the main thread and as a context manager: its exit ends the server."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], spin_rounds: int = SPIN_ROUNDS) -> None:
        """`modules`: what it imports, in this order; it forks between two of them, too.

        `environment`: of the server, and so of its forks. `spin_rounds`: of all OpenMP threads, see ADR 45.
        """
        # NumPy's OpenBLAS would start threads when it is imported. OpenMP reads the rounds when torch is loaded.
        self._environment = {"OPENBLAS_NUM_THREADS": "1", **environment}
        if "OMP_WAIT_POLICY" not in environment:
            self._environment.setdefault("GOMP_SPINCOUNT", str(spin_rounds))
        self._modules, self.spin_rounds = list(modules), spin_rounds
        self.timeout_s = TIMEOUT_S  # limit of an answer
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> ForkServer:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server; its forks run on."""
        self._opened.close()

    def is_ready(self, timeout_s: float) -> bool:
        """Waits until the server has imported everything, for `timeout_s` at most; True if it has.

        Raises `StartError` if the server has ended.
        """
        while not self._is_ready and wait_readable(timeout_s, self._socket.fileno()):
            try:
                self._receive()
            except OSError as error:
                raise self._ended() from error
        return self._is_ready

    def start(  # noqa: PLR0913  # what a process is given
        self, role: str, index: int, target: str, payload: Any, fds: Mapping[str, int], log_fd: int, lifeline_fd: int
    ) -> Child:
        """Starts a child of this process, which must be `adopting`, that calls `module:function`.

        `payload`: JSON values. `fds`: descriptors that it inherits, by name. `log_fd`: file of its stdout and stderr.
        It ends when the other end of `lifeline_fd` is closed. Raises `StartError`.
        """
        spec = (role, index, target, payload, list(fds), os.getpid())
        with contextlib.ExitStack() as opened:
            messages, theirs = os.pipe()
            opened.callback(os.close, messages)
            with scratch_file() as file, open(theirs, "wb"):
                file.write(json.dumps(spec).encode())
                file.seek(0)
                try:
                    if role != "call":
                        fault.hit("spawn")
                    pid = self._fork([log_fd, file.fileno(), theirs, lifeline_fd, *fds.values()])
                except OSError as error:
                    raise StartError(f"{role} {index} cannot be started: {error.strerror}") from error
            child = Child(role, index, pid, os.pidfd_open(pid), messages)
            opened.pop_all()
        return child

    def _fork(self, fds: Sequence[int]) -> int:
        """Returns the pid of a fork with these descriptors. A server that was killed is started again, once.

        Raises `StartError` if the server cannot be used, and `OSError` if the machine refuses.
        """
        try:
            self._send(fds)
        except (ConnectionError, ProcessLookupError):  # it is gone, and has not begun with this request
            self.close()
            self._start()
            self._send(fds)
        try:
            while (answer := self._receive()) == READY:
                pass
        except OSError as error:
            cause = self._ended()
            self.close()  # or a late answer would be taken for that to the next request
            raise cause from error
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def _start(self) -> None:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: the kernel would drop all exit codes
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with contextlib.ExitStack() as opened:
            self._output = opened.enter_context(scratch_file())
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.callback(self._socket.close)
            arguments = [str(theirs.fileno()), _ROOT, str(os.getpid()), *self._modules]
            with theirs, signals_blocked():
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-X", "faulthandler", "-c", _SERVE, *arguments],
                    pass_fds=(theirs.fileno(),), env=self._environment,
                    stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
                )  # fmt: skip
            opened.callback(self._process.wait)
            opened.callback(self._process.kill)
            self.pid, self._is_ready = self._process.pid, False
            self._opened = opened.pop_all()

    def _send(self, fds: Sequence[int]) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)  # it may have been raised since the server began
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, limits)
        self._socket.settimeout(self.timeout_s)
        self._socket.send(b"%d" % len(fds))
        for begin in range(0, len(fds), MOST_FDS):
            socket.send_fds(self._socket, [b"f"], fds[begin : begin + MOST_FDS])

    def _receive(self) -> int:
        """Returns the next answer. Raises `OSError` if the server has ended, or gives none in time."""
        data = self._socket.recv(MESSAGE_BYTES)
        if not data:
            raise ConnectionResetError("the fork server has ended")
        self._is_ready |= int(data) == READY
        return int(data)

    def _ended(self) -> StartError:
        """Returns why the server cannot be used, with what it printed last."""
        try:
            how = describe_exit(self._process.wait(1.0))
        except subprocess.TimeoutExpired:
            how = f"gave no answer within {self.timeout_s:g} s"
        return StartError(f"the process that imports torch for the run {how}\n{tail_of(self._output)}".rstrip())


# -- a call in another process -----------------------------------------------------------------------------------------


class ChildError(Exception):
    """A call in a child process has no result: `reason` says how the child ended, `output` is what it printed last."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason, self.output = reason, output


class ChildTimeout(ChildError):
    """The child was killed because it did not finish in time."""


def call_in_child(
    target: str, payload: Any = None, *, timeout_s: float = TIMEOUT_S, server: ForkServer | None = None
) -> Any:  # Any: JSON values
    """Returns the JSON result of the function `module:function`, called with `payload` in another process.

    That is a fork of `server`, or of one that has imported nothing. It, and whatever it started, is killed when the
    call ends. An `OffPolicyError` of the function is raised here with its type and text. Raises `ChildError` for any
    other error, or if the child died, and `ChildTimeout` after `timeout_s`.
    """
    known = own_children()
    with contextlib.ExitStack() as opened:
        output = opened.enter_context(scratch_file())
        opened.enter_context(adopting())
        parent = server or opened.enter_context(ForkServer([], os.environ))
        known.add(parent.pid)
        lifeline = os.pipe()
        for fd in lifeline:
            opened.callback(os.close, fd)
        opened.enter_context(cleaned_up(lambda: end_adopted(known)))
        child = parent.start("call", 0, target, payload, {}, output.fileno(), lifeline[0])
        opened.callback(child.close)
        try:
            while child.poll() is None:
                if not wait_readable(timeout_s, child.pidfd, child.messages):
                    raise ChildTimeout(f"gave no answer within {timeout_s:g} s", tail_of(output))
                child.read()
        finally:
            child.kill()
            child.wait(KILL_TIMEOUT_S)
            end_adopted(known)
        while child.read() is not None:
            pass
        printed = tail_of(output)
    if child.has_finished and child.returncode == 0:
        return child.result
    if not child.error:
        raise ChildError(describe_exit(child.returncode), printed)
    error = child.error
    kind = None if error["traceback"] else getattr(errors, error["error"], None)
    if kind is None:
        raise ChildError(f"raised {error['error']}: {error['text']}", printed)
    raise kind(error["problems"] or error["text"])


# -- the server -------------------------------------------------------------------------------------------------------


def serve(fd: int, parent_pid: int, modules: Sequence[str]) -> NoReturn:
    """Imports the modules, then forks on request; ends when the client closes the socket `fd`, or dies.

    The signals of a run stay blocked in a fork until `leave_signals`: a stop is often sent to all processes of a group.
    """
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    die_with_parent(parent_pid)
    show_name("op-forkserver")
    gc.disable()  # until a fork: what the imports make stays, and looking at it took 0.3 of the 2.0 s of torch's import
    for name in modules:
        importlib.import_module(name)
        sys.stdout.flush()  # or each fork would print it again
        gc.freeze()  # the collector of a fork never looks at it, and so copies none of its pages
        while wait_readable(0.0, sock.fileno()):
            _answer(sock)
    sock.send(b"%d" % READY)
    while True:
        _answer(sock)


def _answer(sock: socket.socket) -> None:
    """Answers one request with the pid of a new process, which runs its main function here and exits."""
    data, fds = sock.recv(MESSAGE_BYTES), list[int]()
    if not data:
        sys.exit(0)
    while len(fds) < int(data):
        fds += socket.recv_fds(sock, 1, MOST_FDS)[1]
    read, write = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        between, answer = -1, b"%d" % -(error.errno or errno.EAGAIN)
    if not between:
        _fork_and_end(write)
        for fd in (read, write, sock.detach()):
            os.close(fd)
        for output in (1, 2):
            os.dup2(fds[0], output)
        os.close(fds[0])
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # the global generator, which every fork has inherited
        gc.enable()
        sys.exit(main(fds[1:]))
    os.close(write)
    if between > 0:
        os.waitpid(between, 0)
        answer = os.read(read, MESSAGE_BYTES) or b"%d" % -errno.EAGAIN  # it was killed
    for fd in (read, *fds):
        os.close(fd)
    sock.send(answer)


def _fork_and_end(answer_fd: int) -> None:
    """Forks, writes the answer and ends; returns in the fork, once this process has ended."""
    own_pid = os.getpid()
    try:
        answer = os.fork()
    except OSError as error:
        answer = -(error.errno or errno.EAGAIN)
    if answer:
        os.write(answer_fd, b"%d" % answer)
        os._exit(0)
    while os.getppid() == own_pid:
        select.select([], [], [], ADOPTION_POLL_S)

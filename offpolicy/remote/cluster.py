"""The Ray cluster of a run, as its link uses it. Ray is imported here alone, by the link's process and the actors.

The variables that Ray reads must be set before it is imported. It replaces the handler of SIGTERM and starts threads,
so no other process of a run joins a cluster.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offpolicy import __version__
from offpolicy.errors import ConfigError, EnvWorkerKilled
from offpolicy.processes.signals import leave_signals
from offpolicy.remote.collector import RemoteCollector
from offpolicy.timing.clock import MonotonicClock
from offpolicy.training.run_memory import RAY_STORE_BYTES
from offpolicy.training.worker import WorkerSpec
from offpolicy.types import Float32

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_task_events_report_interval_ms": "0",  # the head would keep a record of each of the newest 100,000 calls
}
LOCAL_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all ports at 127.0.0.1, also where there is a network
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # for which processes of the cluster outlive its head
    # A dead node is known within two seconds, by default within twenty.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
MOST_CALLS = 2  # open at once, of one collector: one is carried out, the other one waits
INLINE_BYTES = 50_000  # below which weights go with each call: a reference costs the hosts several ms of CPU
GET_TIMEOUT_S = 30.0  # of a result that is there, and must be copied from another host


class LostError(Exception):
    """A remote collector does not answer, or will never; `is_dead` if its process is known to have ended."""

    def __init__(self, text: str, *, is_dead: bool) -> None:
        super().__init__(text)
        self.is_dead = is_dead


class Actor:
    """A remote collector. Its calls are carried out in their order, on one thread; meanwhile it says where it is."""

    def __init__(self) -> None:
        self._collector, self._thread = RemoteCollector(), ThreadPoolExecutor(1)
        self._turn, self._number = threading.Condition(), 0  # of the next call

    def call(self, number: int, name: str, *args: Any) -> Any:  # Any: of the method
        """Calls a method of the collector, after the calls with lower numbers: Ray may bring them in another order."""
        came_ns = MonotonicClock.now_ns()

        def carry_out() -> Any:
            self._collector.called_ns = came_ns
            return getattr(self._collector, name)(*args)

        with self._turn:
            self._turn.wait_for(lambda: self._number == number)
            self._number += 1
            done = self._thread.submit(carry_out)
            self._turn.notify_all()
        return done.result()

    def where(self) -> tuple[str, str]:
        """Returns the node's id and the host's name."""
        import ray

        return ray.get_runtime_context().get_node_id(), socket.gethostname()


@dataclass(slots=True)
class Remote:
    """An actor as the link has it."""

    actor: Any  # of Ray; as are all references here
    number: int = 0  # of its next call

    def call(self, name: str, *args: Any) -> Any:  # Any: of the method; a reference in place of an argument is resolved
        """Calls a method of its collector; returns the reference of the result."""
        self.number += 1
        return self.actor.call.options(concurrency_group="calls").remote(self.number - 1, name, *args)

    def where(self) -> Any:
        """Calls `where`, which no other call holds up; returns the reference of the result."""
        return self.actor.where.options(concurrency_group="where").remote()


class Cluster:
    """A cluster that this process has joined."""

    def __init__(self, ray: Any, num_collectors: int) -> None:  # Any: a module without types for most of it
        self._ray = ray
        self._class = ray.remote(
            num_cpus=0,
            # A host's share; Ray rounds to four digits, and all must fit.
            resources={"collector": (10_000 // num_collectors) / 10_000},
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
            concurrency_groups={"calls": MOST_CALLS, "where": 1},
        )(Actor)
        self._own_node = ray.get_runtime_context().get_node_id()

    def new_actor(self) -> Remote:
        """Returns an actor, which starts once a host has room for it."""
        return Remote(self._class.remote())

    def put(self, weights: Float32) -> Any:
        """Returns what a call takes: small weights themselves, or the reference of those that every host gets once."""
        return weights if weights.nbytes < INLINE_BYTES else self._ray.put(weights)

    def wait(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Returns a reference whose result is here, if there is one within `timeout_s`."""
        return list(self._ray.wait(references, num_returns=1, timeout=timeout_s)[0])

    def get(self, reference: Any, timeout_s: float = GET_TIMEOUT_S) -> Any:  # Any: what the call has returned
        """Returns the result of a call. Raises `LostError`, or what the collector has raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except errors.RayTaskError as error:
            if isinstance(error.cause, EnvWorkerKilled):
                raise LostError(str(error.cause), is_dead=True) from error
            raise error.cause from error
        except errors.RayError as error:
            if isinstance(error, errors.RayActorError) and error.actor_init_failed:
                text = f"got a host where no collector begins: {str(error).splitlines()[-1]}"
                raise ConfigError(f"runner.ray: {text}; allowed hosts with offpolicy {__version__}") from None
            raise LostError(str(error).splitlines()[0], is_dead=isinstance(error, errors.ActorDiedError)) from error

    def is_alive(self, node: str = "") -> bool:
        """True if a node, or this host's own one, is not known to be dead."""
        node = node or self._own_node
        return any(found["NodeID"] == node and found["Alive"] for found in self._ray.nodes())

    def kill(self, remote: Remote) -> None:
        """Ends an actor, if it still runs."""
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(remote.actor, no_restart=True)


@contextlib.contextmanager
def joined(job: WorkerSpec) -> Iterator[Cluster]:
    """Joins the cluster of `runner.ray`, or starts one of this machine, which ends with the block.

    Its files lie in `job.ray_dir`, among them the token that a caller needs. Raises `ConfigError`.
    """
    cfg = job.cfg
    os.environ.update(SETTINGS)
    if job.ray_dir is not None:
        Path(job.ray_dir, "token").write_text(secrets.token_hex(32))
        os.environ.update(LOCAL_SETTINGS | {"RAY_AUTH_TOKEN_PATH": f"{job.ray_dir}/token"})
        os.setpgid(0, 0)  # a signal to the run's group must not end the cluster before the run
        where: dict[str, Any] = {
            "num_cpus": 0,
            "resources": {"collector": cfg.collect.remote_hosts},
            "object_store_memory": RAY_STORE_BYTES,
            "_temp_dir": f"{job.ray_dir}/ray",  # which Ray makes open to all
        }
    else:
        where = {"address": cfg.runner.ray}
    import ray

    try:
        ray.init(**where, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        allowed = f"a cluster of Ray {ray.__version__} that this host has joined, with its token"
        text = f"got {cfg.runner.ray}, allowed {allowed}: {' '.join(str(error).split())}"
        raise ConfigError(f"runner.ray: {text}") from error
    try:
        leave_signals()  # again: Ray has replaced SIGTERM's handler
        yield Cluster(ray, cfg.collect.num_collectors)
    finally:
        ray.shutdown()

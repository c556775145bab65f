"""A look at an environment before anything starts: it exists, its spaces are supported, it resets and steps.

`probe` does it in a short-lived process of its own, `python -P -m offpolicy.envs.probe`, so that a crash, a hang or a
heavy import of the environment never touches the caller. Request (stdin) and answer (a file) are JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from offpolicy.children import die_with_parent
from offpolicy.config.schema import EnvConfig
from offpolicy.envs.env_adapter import FAILURE_KEY, EnvAdapter, codec_of
from offpolicy.envs.make import find_spec, make_env
from offpolicy.envs.vector import NativeVector
from offpolicy.envs.worker_pool import OPEN_GRACE_S
from offpolicy.errors import ConfigError, EnvFailure, HangError
from offpolicy.types import SpaceSpec

_STDERR_LINES = 20  # of a dead probe, shown to the user


def check_id(env_id: str) -> None:
    """Refuse an id that Gymnasium does not know, in this process and without constructing anything.

    `module:EnvId` is left to `probe`, which imports the module. Raises `ConfigError` with the closest ids.
    """
    if ":" not in env_id:
        find_spec(env_id)


def probe(cfg: EnvConfig) -> SpaceSpec:
    """The spaces of `cfg`'s environment, after one construction, reset and step in another process.

    Raises `ConfigError` (unknown id, wrong kwargs, unsupported spaces), `EnvFailure` (the environment raised or its
    process died) or `HangError` (no answer within `cfg.step_timeout_s` and the time to import it).
    """
    check_id(cfg.id)
    answer = _ask({"env": dataclasses.asdict(cfg), "sys_path": sys.path, "parent": os.getpid()}, cfg)
    if "config_problems" in answer:
        raise ConfigError(answer["config_problems"])
    if "failure" in answer:
        raise EnvFailure(answer["failure"])
    return SpaceSpec.from_json(answer["spec"])


def _ask(request: dict[str, Any], cfg: EnvConfig) -> Any:
    command = [sys.executable, "-P", "-X", "faulthandler", "-m", "offpolicy.envs.probe"]
    # Files, not pipes: a program that the environment started may hold them open long after the answer.
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=_child_env(), text=True, start_new_session=True
        ) as child:
            try:
                child.communicate(json.dumps(request), timeout=cfg.step_timeout_s + OPEN_GRACE_S)
            except subprocess.TimeoutExpired as error:
                waited_s = cfg.step_timeout_s + OPEN_GRACE_S
                raise HangError(f"{cfg.id} was not created, reset and stepped once within {waited_s:g} s") from error
            finally:
                _kill_session(child)
        answer, complaints = _content(out), _content(err)
    if child.returncode != 0 or not answer:
        raise EnvFailure(f"{cfg.id}: the process that tried it {_end(child.returncode)}\n{_tail(complaints)}")
    return json.loads(answer)


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _child_env() -> dict[str, str]:
    """The environment variables of this process, with which `offpolicy` can be found even when it is not installed."""
    root = str(Path(__file__).resolve().parents[2])
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    paths = [os.environ.get("PYTHONPATH", ""), "" if root in installed else root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _kill_session(child: subprocess.Popen[str]) -> None:
    """End the probe, if it has not ended, and whatever its environment started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _end(returncode: int) -> str:
    return f"was killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exited with code {returncode}"


def _tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-_STDERR_LINES:])


def _try_out(cfg: EnvConfig) -> dict[str, Any]:
    """The answer of the child."""
    try:
        env = make_env(cfg)
        codec = codec_of(env)
        if cfg.vectorization == "mujoco":
            NativeVector(cfg, codec, num_envs=1).close()
    except ConfigError as error:
        return {"config_problems": list(error.problems)}
    except EnvFailure as error:
        return {"failure": str(error)}
    door = EnvAdapter(cfg, 0, 1, codec, env)
    _, info = door.reset(seed=0)
    if not info:
        middle = (np.asarray(codec.spec.action_low) + np.asarray(codec.spec.action_high)) / 2.0
        info = door.step(middle.astype(codec.action_dtype))[4]
    door.close()
    return {"failure": info[FAILURE_KEY]} if FAILURE_KEY in info else {"spec": dataclasses.asdict(codec.spec)}


def main() -> None:
    """The child: one request on stdin, one answer on what was stdout."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # whatever the environment prints must not end up in the answer
    request = json.loads(sys.stdin.read())
    die_with_parent(request["parent"])
    sys.path += [entry for entry in (*request["sys_path"], os.getcwd()) if entry not in sys.path]
    answer = _try_out(EnvConfig(**request["env"]))
    with os.fdopen(answer_fd, "w") as stream:
        json.dump(answer, stream)


if __name__ == "__main__":
    main()

"""`eval.video`: the first episode of each evaluation as a file under `videos/`, made by a process of its own.

A renderer may crash, hang or need a display, so it never runs in a process of the run: whatever it does costs a
warning and the videos that would come, not the training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors.numpy
import safetensors.torch
import torch

from offpolicy import fault
from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint.formats import Array
from offpolicy.children import describe_exit, die_with_parent, leave_signals, module_path, scratch_file, signals_blocked
from offpolicy.collect.evaluation import deterministic_actor
from offpolicy.collect.film import Film, GifTiming, Picture, draw_without_window
from offpolicy.config.schema import RunConfig
from offpolicy.descendants import HELD_S
from offpolicy.files import atomic_file, remove_temporaries
from offpolicy.output import drop_refused
from offpolicy.timing.clock import Stopwatch
from offpolicy.types import SpaceSpec

VIDEOS = "videos"  # a run's directory of them
MOST_PICTURES = 600  # of one video: 20 s at 30 pictures per second
MOST_PIXELS = 320  # of a side; larger pictures are thinned out
FINISH_S = 20.0  # seconds that a run which has reached its end waits for its videos
MOST_S = 300.0  # seconds that one video may take
NICENESS = 10  # the run comes first
WORKER = "from offpolicy.collect.eval_video import main; main()"


class EvalVideo:
    """Starts a process per evaluation, one at a time; of those that come meanwhile the newest is filmed next."""

    def __init__(self, cfg: RunConfig, spec: SpaceSpec, run: Path, warn: Callable[[str], None]) -> None:
        """`warn` gets the first failure, after which nothing more is filmed. Create it on the main thread."""
        self._cfg, self._spec, self._warn = cfg, spec, warn
        self._directory, self._is_on = run / VIDEOS, cfg.eval.video
        self._process: subprocess.Popen[bytes] | None = None
        self._next: bytes | None = None  # the request that waits for the process
        self._watch = Stopwatch()

    def film(self, tensors: Mapping[str, Array], env_steps: int) -> None:
        """Begins the video of the policy with these tensors; returns at once."""
        if not self._is_on:
            return
        request = {
            "run": self._cfg.to_mapping(),
            "spec": dataclasses.asdict(self._spec),
            "file": str(self._directory / f"step-{env_steps:012d}.gif"),
            "sys_path": module_path(),
            "parent_pid": os.getpid(),
        }
        self._next = json.dumps(request).encode() + b"\n" + safetensors.numpy.save(dict(tensors))
        self._poll()

    def finish(self) -> None:
        """Gives the videos that are still to be made `FINISH_S`: the last evaluation's is wanted most."""
        watch = Stopwatch()
        self._poll()
        while self._process is not None and (left_s := FINISH_S - watch.elapsed_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(left_s)
            self._poll()

    def close(self) -> None:
        """Ends the video that is being made; a second call does nothing."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                self._process.wait(HELD_S)
            self._process = None
            remove_temporaries(self._directory)

    def _poll(self) -> None:
        """Takes note of a process that has ended, ends one that takes too long, and starts the next one."""
        if self._process is not None:
            code = self._process.poll()
            if code is None and self._watch.elapsed_s() <= MOST_S:
                return
            self.close()
            if code != 0:
                how = f"took longer than {MOST_S:g} s" if code is None else describe_exit(code)
                self._give_up(f"its process {how}; see train.log")
        if self._is_on and self._next is not None:
            request, self._next, self._watch = self._next, None, Stopwatch()
            try:
                self._process = _start(request)
            except OSError as error:
                self._give_up(f"its process could not be started: {error}")

    def _give_up(self, why: str) -> None:
        self._is_on = False
        self._warn(f"eval.video: no video, {why}. No more evaluations are filmed")


def _start(request: bytes) -> subprocess.Popen[bytes]:
    fault.hit("video.spawn")
    with scratch_file() as file, signals_blocked():
        file.write(request)
        file.seek(0)
        # What the renderer prints goes to train.log.
        return subprocess.Popen([sys.executable, "-P", "-c", WORKER], stdin=file, stdout=2)


def main() -> None:
    """Runs in the process of one video; its request comes from stdin."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    drop_refused("stdout", "stderr")
    leave_signals()
    die_with_parent(request["parent_pid"])
    os.nice(NICENESS)
    sys.path += [entry for entry in request["sys_path"] if entry not in sys.path]
    draw_without_window()
    torch.set_num_threads(1)
    cfg = RunConfig.from_mapping(request["run"])
    policy = make_policy(cfg.algo, SpaceSpec.from_json(request["spec"])).eval()
    tensors = safetensors.torch.load(sys.stdin.buffer.read())
    policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in tensors.items()})
    path = Path(request["file"])
    with contextlib.closing(Film(deterministic_actor(policy), cfg.env, episodes=1, seed=cfg.seed)) as film:
        save_video(film, film.fps, path)
    make_room(path.parent, cfg.eval.video_mb * 1_000_000)


def save_video(pictures: Iterable[Picture], fps: float, path: Path) -> None:
    """Writes the first `MOST_PICTURES` of the pictures, thinned out to `MOST_PIXELS` a side. Raises OSError."""
    import imageio.v2 as imageio

    fault.hit("video.mkdir")
    path.parent.mkdir(exist_ok=True)
    with atomic_file(path, durable=False) as file:
        # Any: imageio's types leave `append_data` and names of formats out
        get_writer: Any = imageio.get_writer
        timing = GifTiming.of(fps)
        with get_writer(file, format="GIF", duration=timing.delays_ms, loop=0) as writer:
            for picture in islice(pictures, 0, MOST_PICTURES * timing.stride, timing.stride):
                step = -(-max(picture.shape[:2]) // MOST_PIXELS)
                writer.append_data(picture[::step, ::step])


def make_room(directory: Path, most_bytes: int) -> None:
    """Removes the oldest videos until the rest have at most so many bytes. Raises OSError."""
    videos = sorted(directory.glob("step-*"), reverse=True)
    total = 0
    for video in videos:
        total += video.stat().st_size
        if total > most_bytes:
            fault.hit("video.remove")
            video.unlink()

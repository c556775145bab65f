"""`eval.video`: the first episode of each evaluation as a file under `videos/`, made by a process of its own.

A renderer may crash, hang or need a display, so it never runs in a process of the run: whatever it does costs a
warning and the videos that would come, not the training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
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
from offpolicy.children import describe_exit, die_with_parent, leave_signals, module_path, signals_blocked
from offpolicy.collect.evaluation import deterministic_actor
from offpolicy.collect.film import Film, GifTiming, Picture, draw_without_window
from offpolicy.config.schema import RunConfig
from offpolicy.descendants import HELD_S
from offpolicy.files import atomic_file, remove_temporaries
from offpolicy.start import drop_refused
from offpolicy.timing.clock import Stopwatch
from offpolicy.types import SpaceSpec

VIDEOS = "videos"  # a run's directory of them
MOST_PICTURES = 600  # of one video: 20 s at 30 pictures per second
MOST_PIXELS = 320  # of a side; larger pictures are thinned out
FINISH_S = 20.0  # seconds that a run which has reached its end waits for its videos
MOST_S = 300.0  # seconds that one video may take
NICENESS = 10  # the run comes first
WORKER = "import sys; from offpolicy.collect.eval_video import main; main(int(sys.argv[1]), int(sys.argv[2]))"


class EvalVideo:
    """Starts a process per evaluation, one at a time; of those that come meanwhile the newest is filmed next."""

    def __init__(self, cfg: RunConfig, spec: SpaceSpec, run: Path, warn: Callable[[str], None]) -> None:
        """`warn` gets the first failure, after which nothing more is filmed. Create it on the main thread."""
        self._cfg, self._spec, self._warn = cfg, spec, warn
        self._directory, self._is_on = run / VIDEOS, cfg.eval.video
        self._worker: subprocess.Popen[bytes] | None = None
        self._next: bytes | None = None  # the request that waits for the worker
        self._watch = Stopwatch()

    def film(self, tensors: Mapping[str, Array], env_steps: int) -> None:
        """Begins the video of the policy with these tensors; returns at once."""
        if not self._is_on:
            return
        request = {
            "algo": self._cfg.to_mapping(),
            "spec": dataclasses.asdict(self._spec),
            "file": str(self._directory / f"step-{env_steps:012d}.gif"),
            "most_bytes": self._cfg.eval.video_mb * 1_000_000,
            "sys_path": module_path(),
        }
        self._next = json.dumps(request).encode() + b"\n" + safetensors.numpy.save(dict(tensors))
        self._poll()

    def finish(self) -> None:
        """Gives the videos that are still to be made `FINISH_S`: the last evaluation's is wanted most."""
        watch = Stopwatch()
        self._poll()
        while self._worker is not None and (left_s := FINISH_S - watch.elapsed_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                fault.hit("video.wait")
                self._worker.wait(left_s)
            self._poll()

    def close(self) -> None:
        """Ends the video that is being made; a second call does nothing."""
        self._poll()
        self._end()

    def _start(self, content: bytes) -> None:
        with open(os.memfd_create("offpolicy-video"), "w+b") as file, signals_blocked():
            file.write(content)
            file.flush()
            fault.hit("video.spawn")
            self._worker = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, str(file.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what the renderer prints goes to train.log
                pass_fds=(file.fileno(),),
            )
        self._watch = Stopwatch()

    def _poll(self) -> None:
        """Takes note of a worker that has ended, ends one that takes too long, and starts the next one."""
        if self._worker is not None:
            code = self._worker.poll()
            if code is None and self._watch.elapsed_s() > MOST_S:
                self._end()
                self._give_up(f"it took longer than {MOST_S:g} s")
            elif code is not None:
                self._worker = None
                if code != 0:
                    remove_temporaries(self._directory)
                    self._give_up(f"its process {describe_exit(code)}; see train.log")
        if self._worker is None and self._next is not None and self._is_on:
            content, self._next = self._next, None
            try:
                self._start(content)
            except OSError as error:
                self._give_up(f"its process could not be started: {error}")

    def _give_up(self, why: str) -> None:
        self._is_on = False
        self._warn(f"eval.video: no video, {why}. No more evaluations are filmed")

    def _end(self) -> None:
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError):
                self._worker.send_signal(signal.SIGKILL)
            fault.hit("video.wait")
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                self._worker.wait(HELD_S)
            self._worker = None
            remove_temporaries(self._directory)


def main(request_fd: int, parent_pid: int) -> None:
    """Runs in the process of one video."""
    drop_refused("stdout", "stderr")
    leave_signals()
    die_with_parent(parent_pid)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with open(request_fd, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = json.loads(file.readline())
        tensors = safetensors.torch.load(file.read())
    sys.path += [entry for entry in request["sys_path"] if entry not in sys.path]
    draw_without_window()
    torch.set_num_threads(1)
    cfg = RunConfig.from_mapping(request["algo"])
    policy = make_policy(cfg.algo, SpaceSpec.from_json(request["spec"])).eval()
    policy.load_state_dict({name.removeprefix("policy."): tensor for name, tensor in tensors.items()})
    file_path = Path(request["file"])
    with contextlib.closing(Film(deterministic_actor(policy), cfg.env, episodes=1, seed=cfg.seed)) as film:
        save_video(film, film.fps, file_path)
    make_room(file_path.parent, request["most_bytes"])


def save_video(pictures: Iterable[Picture], fps: float, path: Path) -> None:
    """Writes the first `MOST_PICTURES` of the pictures, thinned out to `MOST_PIXELS` a side. Raises OSError."""
    import imageio.v2 as imageio

    fault.hit("video.mkdir")
    path.parent.mkdir(exist_ok=True)
    with atomic_file(path, durable=False) as file:
        # Any: imageio's types leave `append_data` and names of formats out
        get_writer: Any = imageio.get_writer
        timing = GifTiming.of(fps)
        writer = get_writer(file, format="GIF", duration=timing.delays_ms, loop=0)
        with writer:
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

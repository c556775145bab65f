"""`offpolicy export RUN --onnx policy.onnx [--torch policy.pt2]`: a saved policy as files that need no `offpolicy`.

Each file is compared with the run's own policy before it is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from offpolicy.checkpoint import Checkpoint
from offpolicy.commands.options import PolicyChoice, add_policy_options, add_run
from offpolicy.commands.saved_run import SavedRun
from offpolicy.envs.env_adapter import codec_of
from offpolicy.envs.make import make_env
from offpolicy.envs.vector import open_batch
from offpolicy.envs.vectorization import has_single
from offpolicy.errors import EXIT_OK, ConfigError, SaveError
from offpolicy.export.contract import FORMAT, contract_path, describe_ports, digest, json_value, versions
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.formats import Runner, check_names, require_onnx, write_onnx, write_torch
from offpolicy.export.parity import LIMIT, ROWS, difference, random_observations, visited_observations
from offpolicy.files import atomic_file, write_output
from offpolicy.logger.console import plain_console
from offpolicy.runs import check_output

SUFFIXES = {"--onnx": ".onnx", "--torch": ".pt2"}
WRITERS: Mapping[str, Callable[[EnvPolicy, IO[bytes]], Runner]] = {"--onnx": write_onnx, "--torch": write_torch}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the files."""
    add_run(parser)
    parser.add_argument("--onnx", type=Path, help="file to write, .onnx; needs offpolicy[export]")
    parser.add_argument("--torch", type=Path, help="file to write, .pt2, a program of torch.export")
    add_policy_options(parser, has_device=False)  # what is written depends on no device


def run(arguments: argparse.Namespace) -> int:
    """Writes the files with their contracts, and prints how far they are from the run's own policy.

    Raises `ConfigError`, `CheckpointError`, `EnvFailure` or `SaveError`; then no file is kept.
    """
    given = {"--onnx": arguments.onnx, "--torch": arguments.torch}
    files: dict[str, Path] = {option: file for option, file in given.items() if file}
    if not files:
        raise ConfigError("--onnx: got nothing, allowed a new file: offpolicy export RUN --onnx policy.onnx")
    for option, file in files.items():
        check_output(option, file, SUFFIXES[option], is_new=True)
        check_output(f"{option}: the contract beside it", contract_path(file), is_new=True)
    if "--onnx" in files:
        require_onnx()
    saved, console = SavedRun.find(arguments.run, PolicyChoice.of(arguments)), plain_console()
    policy = saved.policy()
    with contextlib.closing(make_env(saved.env) if has_single(saved.env) else open_batch(saved.env, 1)) as env:
        codec = codec_of(env, saved.env.action_bounds)
        saved.require_spaces(codec.spec)
        module = EnvPolicy(policy, codec)
        if "--onnx" in files:
            check_names("--onnx", module)
        contract = describe_ports(module, codec, env, saved.env.name) | _origin(saved)
    with Console(stderr=True).status("visiting observations, writing, checking"), contextlib.ExitStack() as undo:
        visited = visited_observations(saved.actor(), saved.env, seed=saved.seed)
        observations = {"random": random_observations(visited, seed=saved.seed), "visited": visited}

        def differences(runner: Runner) -> dict[str, float]:
            return {name: difference(runner, module, codec, policy, obs) for name, obs in observations.items()}

        made = dict[Path, dict[str, Any]]()
        for option, file in files.items():
            made[file] = _write(option, file, module, differences)
            undo.callback(file.unlink)
        contracts = {contract_path(file): option for option, file in files.items()}
        for path, option in contracts.items():
            own = {file.name: entry for file, entry in made.items() if contract_path(file) == path}
            content = json.dumps({"format": FORMAT, "files": own, **contract}, indent=1, allow_nan=False)
            write_output(option, path, f"{content}\n")
            undo.callback(path.unlink)
        undo.pop_all()
    for file, entry in made.items():
        far = entry["parity"]
        text = f"{far['random']:.1e} on {far['rows']:,} random, {far['visited']:.1e} on as many visited observations"
        console.print(f"{file}: env step {saved.checkpoint.env_steps:,}; differs by at most {text}", soft_wrap=True)
    for path in contracts:
        console.print(f"{path}: its inputs, outputs and digests", soft_wrap=True)
    return EXIT_OK


def _write(
    option: str, file: Path, module: EnvPolicy, differences: Callable[[Runner], dict[str, float]]
) -> dict[str, Any]:
    """Writes one file and returns what its contract says of it. Raises `SaveError`, and then there is no file."""
    try:
        with atomic_file(file, durable=True) as stream:
            far = differences(WRITERS[option](module, stream))
            if max(far.values()) > LIMIT:
                by = f"{far['random']:.3g} on random and {far['visited']:.3g} on visited observations"
                why = f"it differs from the run's policy by {by}, allowed {LIMIT:g}"
                raise SaveError(f"{option}: {file} is not kept: {why}")
        content = file.read_bytes()
    except OSError as error:
        raise SaveError(f"{option}: {file}: {error.strerror}") from error
    return {"format": option.removeprefix("--"), "bytes": len(content), "sha256": digest(content),
            "parity": {**far, "rows": ROWS}}  # fmt: skip


def _origin(run: SavedRun) -> dict[str, Any]:
    """Returns what the contract says of the run: which weights these are, of what environment."""
    saved = run.checkpoint
    if isinstance(saved, Checkpoint):
        name, file, sha256 = saved.path.name, "learner.safetensors", saved.files["learner.safetensors"].sha256
    else:
        name, file, sha256 = "best", saved.path.name, saved.sha256
    return {
        "algorithm": {"name": run.cfg.algo.name, "stage": run.cfg.algo.info.stage},
        "env": {"id": run.env.name, "kwargs": json_value(run.env.kwargs)},
        "checkpoint": {
            "run": run.path.name, "kind": name, "env_steps": saved.env_steps, "file": file, "sha256": sha256
        },
        "versions": versions(),
    }  # fmt: skip

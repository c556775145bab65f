"""The files of `offpolicy export`: a policy in two formats, compared with the run's own before it is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console

from offpolicy.checkpoint import Checkpoint
from offpolicy.commands.saved_run import PolicyChoice, SavedRun
from offpolicy.envs.env_adapter import codec_of
from offpolicy.envs.make import make_env
from offpolicy.envs.spaces import Codec
from offpolicy.errors import ConfigError, SaveError
from offpolicy.export.contract import FORMAT, contract_path, describe_ports, digest, json_value, versions
from offpolicy.export.env_policy import EnvPolicy
from offpolicy.export.formats import Runner, check_names, require_onnx, write_onnx, write_torch
from offpolicy.export.parity import LIMIT, Parity, difference, limit_of, random_observations, visited_observations
from offpolicy.files import atomic_file, write_output
from offpolicy.logger.console import plain_console
from offpolicy.nets.policy import Policy
from offpolicy.runs import check_output
from offpolicy.types import Float32

SUFFIXES = {"--onnx": ".onnx", "--torch": ".pt2"}
Writer = Callable[[EnvPolicy, IO[bytes]], Runner]
WRITERS: Mapping[str, Writer] = {"--onnx": write_onnx, "--torch": write_torch}


@dataclass(frozen=True, slots=True)
class _Source:
    """What the files are made from, and checked with."""

    run: SavedRun
    policy: Policy
    codec: Codec
    module: EnvPolicy
    random: Float32  # [ROWS, O]
    visited: Float32  # [ROWS, O]


def export(path: Path, choice: PolicyChoice, files: Mapping[str, Path]) -> int:
    """Writes the files by option, each with its contract, and prints how far they are from the run's own policy.

    Raises `ConfigError`, `CheckpointError`, `EnvFailure` or `SaveError`; a file that decides otherwise than the run is
    not kept.
    """
    check_files(files)
    run = SavedRun.find(path, choice)
    policy = run.policy()
    with contextlib.closing(make_env(run.env)) as env:
        codec = codec_of(env)
        run.require_spaces(codec.spec)
        module = EnvPolicy(policy, codec)
        if "--onnx" in files:
            check_names("--onnx", module)
        ports = describe_ports(module, codec, env, run.env.id)
    console, seed = plain_console(), run.seed_of(choice)
    with Console(stderr=True).status("visiting observations, writing, checking"):
        visited = visited_observations(run.actor("cpu"), run.env, seed=seed)
        source = _Source(run, policy, codec, module, random_observations(visited, seed=seed), visited)
        made = _write_all(source, ports, files)
    for file, entry in made.items():
        far = entry["parity"]
        text = f"{far['random']:.1e} on {far['rows']:,} random, {far['visited']:.1e} on as many visited observations"
        if (most := max(far["random_limit"], far["visited_limit"])) > LIMIT:
            text += f"; up to {most:.1e} may be float32's rounding of such observations"
        console.print(f"{file}: env step {run.checkpoint.env_steps:,}; differs by at most {text}", soft_wrap=True)
    for contract in dict.fromkeys(map(contract_path, made)):
        console.print(f"{contract}: its inputs, outputs and digests", soft_wrap=True)
    return 0


def check_files(files: Mapping[str, Path]) -> None:
    """Raises `ConfigError`, before anything is read, where a file cannot be made."""
    if not files:
        raise ConfigError("--onnx: got nothing, allowed a new file: offpolicy export RUN --onnx policy.onnx")
    for option, file in files.items():
        check_output(option, file, SUFFIXES[option], is_new=True)
        check_output(f"{option}: the contract beside it", contract_path(file), is_new=True)
    if "--onnx" in files:
        require_onnx()


def _write_all(source: _Source, ports: Mapping[str, Any], files: Mapping[str, Path]) -> dict[Path, dict[str, Any]]:
    """Writes the files, then their contracts; returns what those say by file. What it raises leaves none of them."""
    made: dict[Path, dict[str, Any]] = {}
    with contextlib.ExitStack() as undo:
        for option, file in files.items():
            made[file] = _write(source, option, file)
            undo.callback(file.unlink)
        for contract in dict.fromkeys(map(contract_path, made)):
            own = {file.name: entry for file, entry in made.items() if contract_path(file) == contract}
            content = json.dumps(_contract(source, ports, own), indent=1, allow_nan=False) + "\n"
            write_output("--onnx" if files.get("--onnx") in made else "--torch", contract, content)
            undo.callback(contract.unlink)
        undo.pop_all()
    return made


def _write(source: _Source, option: str, file: Path) -> dict[str, Any]:
    """Writes one file and returns what its contract says of it. Raises `SaveError`, and then there is no file."""
    try:
        with atomic_file(file, durable=True) as stream:
            run = WRITERS[option](source.module, stream)
            parity = check(run, source.module, source.codec, source.policy, (source.random, source.visited))
            if not parity.is_fine:
                raise SaveError(
                    f"{option}: {file} is not kept: it differs from the run's policy by {parity.random:.3g} on random"
                    f" and {parity.visited:.3g} on visited observations, allowed {parity.random_limit:.3g} and"
                    f" {parity.visited_limit:.3g}"
                )
        content = file.read_bytes()
    except OSError as error:
        raise SaveError(f"{option}: {file}: {error.strerror}") from error
    return {"format": option.removeprefix("--"), "bytes": len(content), "sha256": digest(content),
            "parity": parity.to_json()}  # fmt: skip


def check(run: Runner, module: EnvPolicy, codec: Codec, policy: Policy, kinds: Sequence[Float32]) -> Parity:
    """Returns the parity on random and on visited observations, `kinds`, each [N, O]."""
    random, visited = (difference(run, module, codec, policy, obs) for obs in kinds)
    return Parity(random, visited, len(kinds[0]), *(limit_of(codec, policy, obs) for obs in kinds))


def _contract(source: _Source, ports: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contract of some of the files, as JSON data."""
    run = source.run
    return {
        "format": FORMAT,
        "files": dict(files),
        **ports,
        "algorithm": {"name": run.cfg.algo.name, "stage": run.cfg.algo.info.stage},
        "env": {"id": run.env.id, "kwargs": json_value(run.env.kwargs)},
        "checkpoint": _checkpoint(run),
        "versions": versions(),
    }


def _checkpoint(run: SavedRun) -> dict[str, Any]:
    """Returns which weights these are."""
    saved = run.checkpoint
    if isinstance(saved, Checkpoint):
        digests = {"file": "learner.safetensors", "sha256": saved.files["learner.safetensors"].sha256}
    else:
        digests = {"file": saved.path.name, "sha256": saved.sha256}
    return {"run": run.path.name, "kind": saved.path.name if isinstance(saved, Checkpoint) else "best",
            "env_steps": saved.env_steps, **digests}  # fmt: skip

"""A look at an environment before anything starts, in a short-lived process that may crash or hang."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offpolicy.config.sections import EnvConfig
from offpolicy.envs.env_adapter import EnvAdapter, VectorAdapter, codec_of
from offpolicy.envs.make import find_spec, make_env
from offpolicy.envs.spaces import Codec
from offpolicy.envs.vector import make_vector
from offpolicy.envs.vectorization import has_single, is_batch, is_own, resolve_vectorization
from offpolicy.envs.worker_pool import OPEN_GRACE_S
from offpolicy.errors import ConfigError, EnvFailure, HangError
from offpolicy.processes.child import MAIN_GUARD
from offpolicy.processes.children import module_path
from offpolicy.processes.fork_server import ChildError, ChildTimeout, ForkServer, call_in_child
from offpolicy.types import SpaceSpec

COARSE = 1e-3  # the steps of float32 at 16,384


def check_id(cfg: EnvConfig) -> None:
    """Refuses an id that Gymnasium does not know, in this process and without constructing anything.

    `module:EnvId` is left to `probe`, which imports the module. Raises `ConfigError` with the closest ids.
    """
    if cfg.batch is None and ":" not in cfg.id:
        find_spec(cfg.id)


class Probed(NamedTuple):
    """What was found out about an environment."""

    spec: SpaceSpec
    vectorization: str  # what `env.vectorization=auto` stands for
    device: str | None = None  # of a batch's tensors


def probe(cfg: EnvConfig, server: ForkServer | None = None, *, has_evaluations: bool = False) -> Probed:
    """Returns the spaces of `cfg`'s environment, after one construction, reset and step in another process.

    With `has_evaluations` another one is made beside it, unless that is known to be possible. The process is a fork of
    `server`, or a fresh interpreter. Raises `ConfigError` (unknown id, wrong kwargs, unsupported spaces), `EnvFailure`
    (the environment raised or its process died) or `HangError` (no answer within `cfg.step_timeout_s` and the time to
    import it, twice that where another one is made).
    """
    check_id(cfg)
    request = {"env": dataclasses.asdict(cfg), "sys_path": module_path(), "has_evaluations": has_evaluations}
    timeout_s = (cfg.step_timeout_s + OPEN_GRACE_S) * (2 if has_evaluations else 1)
    try:
        found = call_in_child("offpolicy.envs.probe:try_out", request, timeout_s=timeout_s, server=server)
    except ChildTimeout as error:
        raise HangError(f"{cfg.name} was not created, reset and stepped once within {timeout_s:g} s") from error
    except ChildError as error:
        raise EnvFailure(f"{cfg.name}: the process that tried it {error.reason}\n{error.output}") from error
    return Probed(SpaceSpec.from_json(found["spec"]), found["vectorization"], found["device"])


def try_out(request: dict[str, Any]) -> dict[str, Any]:  # Any: JSON values
    """Runs in the child: constructs, resets and steps the environments once, as one batch too where they will be."""
    sys.path += [entry for entry in request["sys_path"] if entry not in sys.path]
    cfg = EnvConfig(**request["env"])
    try:
        check_id(cfg)
    except ConfigError:
        raise ConfigError(f"env.id: got {cfg.id!r}, registered by the calling program alone; {MAIN_GUARD}") from None
    cfg = resolve_vectorization(cfg)
    tried: list[VectorAdapter] = [make_vector(cfg, 1)] if is_batch(cfg) else []
    device = tried[0].device if tried else None
    draws, saturates, coarse = False, False, tuple[str, ...]()
    if has_single(cfg):
        env = make_env(cfg)
        tried.append(EnvAdapter(cfg, codec_of(env, cfg.action_bounds), 1, first=env))
        draws = "rgb_array" in ((env.metadata or {}).get("render_modes") or ())
    if not tried:
        raise ConfigError(f"env.id: got {cfg.id!r}, which is registered without an entry point")
    for vector in tried:
        with contextlib.closing(vector):
            if resetting(vector.codec) != resetting(tried[0].codec):
                both = f"{tried[0].spec}, one environment {vector.spec}"
                raise EnvFailure(f"the vector of {cfg.id} has other spaces: {both}")
            vector.obs_dtype = np.float64
            before = vector.reset(0)
            coarse = _coarse(
                vector.codec, before, vector.step(np.zeros((1, vector.spec.action_dim), np.float32)).next_obs
            )
            saturates = cfg.action_bounds is not None and _saturates(vector)
            if request["has_evaluations"] and not is_own(cfg):
                _make_another(cfg, vector)
    spec = dataclasses.replace(tried[0].spec, draws=draws, coarse=coarse, saturates=saturates)
    return {"spec": dataclasses.asdict(spec), "vectorization": cfg.vectorization, "device": device}


def resetting(codec: Codec) -> Codec:
    """Returns a layout without what tells ways to reset apart."""
    return dataclasses.replace(codec, spec=dataclasses.replace(codec.spec, resets_in_step=False))


def _coarse(codec: Codec, before: NDArray[Any], after: NDArray[Any]) -> tuple[str, ...]:
    """Returns the names of the numbers in which two observations [1, O] differ by less than float32 can hold.

    What is small in itself is left out: `COARSE` is the largest such difference that does not matter.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        one, other = before.astype(np.float32), after.astype(np.float32)
        is_lost = ((before != after) & (one == other) & (np.spacing(np.abs(one)) > COARSE))[0]
    places = [(leaf, index) for leaf in codec.leaves for index in range(leaf.stop - leaf.start)]
    return tuple(f"{leaf.name or 'obs'}[{index}]" for leaf, index in places if is_lost[leaf.start + index])


def _saturates(vector: VectorAdapter) -> bool:
    """True if the first step ends alike with actions at the upper bounds and at half of that, but not at the lower."""
    ends = []
    for action in (1.0, 0.5, -1.0):
        vector.reset(0)
        ends.append(vector.step(np.full((1, vector.spec.action_dim), action, np.float32)).next_obs)
    return np.array_equal(ends[0], ends[1]) and not np.array_equal(ends[0], ends[2])


def _make_another(cfg: EnvConfig, first: VectorAdapter) -> None:
    """Raises `ConfigError` where no environment can be made beside the first, neither here nor in another process."""
    try:
        is_one = isinstance(first, EnvAdapter)
        with contextlib.closing(EnvAdapter(cfg, first.codec, 1) if is_one else make_vector(cfg, 1)) as another:
            another.reset(1)
    except (EnvFailure, HangError):
        try:
            probe(cfg)
        except (EnvFailure, HangError) as error:
            raise ConfigError(
                "eval.episodes: evaluations need an environment beside that of training, and no other one can be made;"
                f" write eval.episodes=0 to train without: {error}"
            ) from error

"""Makes one environment from its configuration and separates the user's mistakes from the environment's own."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import importlib
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError, EnvFailure

Env: TypeAlias = gymnasium.Env[Any, Any]

NO_LIMIT = 2**31 - 1  # steps of an episode that no episode has; the largest number that every vector can count to
MAX_EPISODE_STEPS = 10_000  # of an evaluation in an environment without a time limit
# What an environment of gym before 0.26 makes fail: reset without seed, step of four values, a class of gym's.
OLD_GYM_SIGNS = (
    *("reset() got an unexpected keyword argument 'seed'", "must return (obs, info)", "expected 5, got 4"),
    *("got a tuple of 4", "Gym is incompatible with Gymnasium"),
)
_LOG = logging.getLogger(__name__)
_SEEN_WARNINGS: set[str] = set()
# What pip installs, the module that registers its ids, and their pattern: docs/environments.md has their recipes.
_ROBOTICS = r"(Fetch[RPS]|Hand[RM]|AdroitHand|PointMaze_|AntMaze_|FrankaKitchen).+"
_PACKAGES = (
    ("shimmy[dm-control]", "shimmy", r"dm_control/.+"),
    ("metaworld", "metaworld", r"Meta-World/.+"),
    ("gymnasium-robotics", "gymnasium_robotics", _ROBOTICS),
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def make_env(cfg: EnvConfig) -> Env:
    """Returns the environment `cfg.id`, unchecked by Gymnasium: `EnvAdapter` checks at less cost.

    It is wrapped as `cfg.wrappers` say. Raises `ConfigError` for an unknown id, a missing dependency or wrong
    `env.kwargs`, and `EnvFailure` for anything else that its module, its constructor or a wrapper raises.
    """
    limit = cfg.kwargs.get("max_episode_steps")  # Gymnasium takes this keyword, and the next, itself
    if limit is not None and (type(limit) is not int or limit == 0 or limit < -1):
        raise ConfigError(
            f"env.kwargs.max_episode_steps: got {limit!r}, allowed a whole number >= 1, -1 for no limit,"
            " or null for that of the registration"
        )
    spec = find_spec(cfg.id)
    try:
        creator_of(spec.entry_point)
        mujoco = sys.modules.get("mujoco")  # loaded by now if this environment needs it
        if mujoco is not None:  # by itself it writes its warnings to stderr and to MUJOCO_LOG.TXT in the cwd
            mujoco.set_mju_user_warning(_log_mujoco_warning)
        # Copied: environments that share a list cannot be restored exactly (`state.py`).
        env = gymnasium.make(spec, disable_env_checker=True, **copy.deepcopy(cfg.kwargs))
    except (Exception, SystemExit) as error:
        head = f"env.id: got {cfg.id!r}"
        raise construction_problem(head, cfg.id, cfg.kwargs, spec.kwargs, spec.entry_point, error) from error
    _refuse_running_statistics(f"env.id: the registration of {cfg.id}", env, env.unwrapped)
    for target in cfg.wrappers:
        env = _wrapped(target, env)
    return env


def _wrapped(target: str, env: Env) -> Env:
    """Returns the environment in one of the user's wrappers, `module:function`. Raises as `make_env`."""
    wrapper = imported("env.wrappers", target)
    try:
        wrapped = wrapper(env)
    except (Exception, SystemExit) as error:
        raise EnvFailure(f"env.wrappers: {target} failed\n{failure_text(error)}") from error
    if not isinstance(wrapped, gymnasium.Env):
        raise ConfigError(
            f"env.wrappers: {target} returned a {type(wrapped).__name__}, allowed a gymnasium.Env around the one given"
        )
    _refuse_running_statistics(f"env.wrappers: {target}", wrapped, env)
    return wrapped


def imported(key: str, target: str) -> Any:  # Any: whatever the user has written
    """Returns what a value `module:function` of a key names. Raises as `import_own`."""
    module, _, name = target.rpartition(":")
    found = getattr(import_own(module, f"{key}: got {target!r}"), name, None)
    if not callable(found):
        raise ConfigError(f"{key}: got {target!r}, allowed module:function: {module} has no function {name!r}")
    return found


def import_own(module: str, head: str, advice: str = "") -> ModuleType:
    """Returns a module of the user's, also one of the working directory, which a console script does not search.

    Raises `ConfigError` where there is none, `head` and then `advice` or the error; `EnvFailure` for what it raises.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{head}: {advice or f'{error}; looked in {os.getcwd()} and sys.path'}") from error
    except ConfigError:  # of a module that trains
        raise
    except (Exception, SystemExit) as error:
        raise EnvFailure(f"{head}: importing {module} failed\n{failure_text(error)}") from error


def _refuse_running_statistics(adder: str, wrapped: Env, inner: Env) -> None:
    """Raises `ConfigError` for wrappers around `inner` whose statistics no checkpoint holds.

    A policy that was trained with them would be evaluated, played and exported without them.
    """
    layer = wrapped
    while layer is not inner and isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, NormalizeObservation | NormalizeReward) and layer.update_running_mean:
            is_obs = isinstance(layer, NormalizeObservation)
            instead = "write algo.normalize_obs=true" if is_obs else "scale rewards by a number, TransformReward"
            raise ConfigError(
                f"{adder} adds a {type(layer).__name__} that goes on learning: its statistics are of one"
                f" environment and are not saved with the policy; {instead}, or set its update_running_mean=False"
            )
        layer = layer.env


def find_spec(env_id: str) -> EnvSpec:
    """Returns the registration of an id; imports the module of `module:EnvId`. Raises as `make_env`."""
    module, _, name = env_id.rpartition(":")
    if module:
        import_own(module, f"env.id: got {env_id!r}", _package_of(module, name))
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ConfigError(f"env.id: got {env_id!r}, {_unknown_id(module, name)}") from error


def with_time_limit(cfg: EnvConfig) -> EnvConfig:
    """Returns an environment whose episodes end: where Gymnasium has no limit, after `MAX_EPISODE_STEPS`.

    Raises as `find_spec`.
    """
    if cfg.batch is not None:  # it has its own limit
        return cfg
    spec = find_spec(cfg.id)
    limit = cfg.kwargs.get("max_episode_steps") or spec.max_episode_steps  # null: that of the registration
    if limit not in (None, -1) or spec.entry_point is None:
        return cfg
    # A vector of one's own gets the limit as an argument, which its constructor need not know: `sync` counts for it.
    vectorization = "sync" if limit is None and spec.vector_entry_point is not None else cfg.vectorization
    kwargs = {**cfg.kwargs, "max_episode_steps": MAX_EPISODE_STEPS}
    return dataclasses.replace(cfg, kwargs=kwargs, vectorization=vectorization)


def _unknown_id(module: str, name: str) -> str:
    """Returns what is allowed instead of an id that Gymnasium does not know."""
    if name.startswith("ALE/"):
        return "allowed an environment that observes numbers, not pixels; write env.id=CartPole-v1 algo=appo"
    if not module and (advice := _package_of(module, name)):
        return advice
    known, stem = gymnasium.registry, name.rpartition("/")[2].rpartition("-v")[0]
    versions = sorted((each for each in known if each.rpartition("-v")[0] == stem), reverse=True)
    if closest := versions or _closest(name, known):
        prefix = f"{module}:" if module else ""
        return f"unknown to Gymnasium; write env.id={prefix}{closest[0]}. Closest ids: {', '.join(closest)}"
    return f"unknown to Gymnasium; allowed such as Pendulum-v1, and module:{name} where that module registers it"


def _package_of(module: str, name: str) -> str:
    """Returns what to install and to write for an id of one of `_PACKAGES`; an empty text for another one."""
    for pip, own, ids in _PACKAGES:
        if module in ("", own) and re.fullmatch(ids, name):
            return f"it is of another package; type pip install '{pip}', and write env.id={own}:{name}"
    return ""


def _closest(name: str, known: Iterable[str]) -> list[str]:
    """Returns the most similar of the known names, the closest first."""
    by_lower = {each.lower(): each for each in known}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, 3, 0.7)]


def old_gym(error: BaseException) -> str:
    """Returns what to do where an error is that of an environment of gym before 0.26; else an empty text."""
    is_old = any(sign in str(error) for sign in OLD_GYM_SIGNS)
    return "; this is the interface of gym before 0.26: pip install shimmy, and wrap the environment" if is_old else ""


def cause_of(error: BaseException) -> str:
    """Returns class and first line of an error."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def failure_text(error: BaseException) -> str:
    """Returns the traceback as text, which crosses processes, without the outermost frame, which is ours."""
    frames = error.__traceback__
    if frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def construction_problem(  # noqa: PLR0913  # what was made, of what
    head: str, what: str, kwargs: Mapping[str, Any], registered: Mapping[str, Any], creator: Any, error: BaseException
) -> ConfigError | EnvFailure:
    """Returns what a constructor's error means: what the user can mend, such as a keyword, or a failure of `what`.

    `head` names it, `kwargs` are the user's, `registered` those of the registration.
    """
    if isinstance(error, ConfigError | EnvFailure):  # it names the key itself
        return error
    if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        return ConfigError(f"{head}, which needs something that is not installed: {error}")
    problems = []
    if isinstance(error, TypeError):
        creator = creator_of(creator)
        parameters = [p for p in inspect.signature(creator).parameters.values() if p.kind in _NAMED]
        known = {p.name for p in parameters} | {"max_episode_steps"}  # that one is for `gymnasium.make`
        # A constructor with **kwargs may take more keys than are known, and raise its own TypeError.
        for key in [key for key in kwargs if key not in known and f"keyword argument {key!r}" in str(error)]:
            guess = "".join(f"did you mean env.kwargs.{near}? " for near in _closest(key, known)[:1])
            problems.append(f"env.kwargs.{key}: {what} does not take it; {guess}allowed {', '.join(sorted(known))}")
        for p in parameters:
            if p.default is p.empty and p.name not in {**registered, **kwargs}:
                problems.append(f"env.kwargs.{p.name}: missing, and {what} needs it")
    if problems:
        return ConfigError(problems)
    hint = old_gym(error)
    return EnvFailure(f"creating {what} with env.kwargs={kwargs} failed{hint}\n{failure_text(error)}")


def creator_of(entry_point: Any) -> Any:  # Any: a class or any callable, as Gymnasium says
    """Returns what an entry point names; its module is imported."""
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def _log_mujoco_warning(message: str) -> None:
    topic = message.split(" at DOF")[0].split("Time")[0]
    if "deprecated" in message or topic in _SEEN_WARNINGS:
        return
    _SEEN_WARNINGS.add(topic)
    _LOG.warning("MuJoCo: %s", message)

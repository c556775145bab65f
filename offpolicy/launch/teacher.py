"""HORA: whether an environment observes what its networks need, and whether a teacher fits its student."""

from __future__ import annotations

from pathlib import Path

from offpolicy.checkpoint import CHECKPOINTS, CheckpointStore
from offpolicy.config.run_files import read_config, read_spec
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.launch.hosts import LaunchPlan
from offpolicy.nets.hora_shapes import HISTORY, MIN_FRAMES, OBS, PRIVILEGED, is_long_enough
from offpolicy.types import SpaceSpec

SAME = ("hidden_dims", "activation", "latent_dim", "encoder_dims", "normalize_obs")  # of the networks taken over


def check_groups(cfg: RunConfig, spec: SpaceSpec) -> None:
    """Refuse an environment without the observation groups that the algorithm needs. Raises `ConfigError`."""
    if cfg.algo.name != "hora":
        return
    env, needed = cfg.env.id, (OBS, PRIVILEGED, HISTORY) if cfg.algo.is_adapting else (OBS, PRIVILEGED)
    if not set(needed) <= set(spec.obs_keys):
        got = f"the groups {', '.join(spec.obs_keys)}" if spec.obs_keys else "no groups"
        advice = "see env.kwargs.groups" if "groups" in cfg.env.kwargs else "env=hand_rotation has them"
        raise ConfigError(
            f"env.id: {env} observes {got}, allowed a Dict with {', '.join(needed)} for algo=hora"
            f" stage={cfg.algo.stage}; {advice}"
        )
    shape = spec.shape_of(HISTORY) if cfg.algo.is_adapting else (MIN_FRAMES, 1)
    if len(shape) != 2 or not is_long_enough(shape[0]):
        allowed = f"(frames, numbers), at least {MIN_FRAMES} frames"
        raise ConfigError(f"env.id: {HISTORY} of {env} has the shape {shape}, allowed {allowed}")


def find_teacher(outset: LaunchPlan, spec: SpaceSpec) -> int | None:
    """The env step of the teacher's newest checkpoint; None where this host's learner needs no teacher.

    Only rank 0 reads it, and only at the start of a run: from then on the run's own checkpoints hold all of it. Raises
    `ConfigError` naming every difference between teacher and student.
    """
    cfg = outset.cfg
    if cfg.teacher is None or outset.place.host != 0 or _goes_on(outset):
        return None
    path = Path(cfg.teacher)
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"teacher: got {cfg.teacher!r}, allowed the directory of a run (it has no config.yaml)")
    problems = _differences(path, cfg, spec)
    if problems:
        raise ConfigError(problems)
    store = CheckpointStore(path / CHECKPOINTS)
    checkpoint = store.newest_valid()
    if checkpoint is None:
        raise ConfigError("\n".join([*store.rejected, f"teacher: {path} holds no usable checkpoint"]))
    return checkpoint.env_steps


def _goes_on(outset: LaunchPlan) -> bool:
    return outset.start_step > 0 or bool(CheckpointStore(Path(outset.cfg.run_dir or ".") / CHECKPOINTS).usable())


def _differences(path: Path, cfg: RunConfig, spec: SpaceSpec) -> list[str]:
    teacher, teacher_spec = read_config(path), read_spec(path)
    if teacher.algo.name != "hora" or teacher.algo.is_adapting:
        what = f"a run of algo={teacher.algo.name}" + (" stage=adapt" if teacher.algo.is_adapting else "")
        return [f"teacher: {path} is {what}, allowed a run of algo=hora stage=teach"]
    sizes = [
        f"algo.{name}: got {_text(ours)}, the teacher {path} has {_text(theirs)}; write algo.{name}={_text(theirs)}"
        for name in SAME
        if (theirs := getattr(teacher.algo, name)) != (ours := getattr(cfg.algo, name))
    ]
    shapes = [
        f"env.id: {what} has {theirs} with the teacher {path}, {ours} in this run: allowed the same"
        for what, theirs, ours in _shapes(teacher_spec, spec)
        if theirs != ours
    ]
    return sizes + shapes


def _text(value: object) -> str:
    """A value the way it is written on the command line."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value).lower()


def _shapes(teacher: SpaceSpec, student: SpaceSpec) -> list[tuple[str, object, object]]:
    groups = [(f"group {group}", teacher.shape_of(group), student.shape_of(group)) for group in (OBS, PRIVILEGED)]
    return [*groups, ("the action", _action(teacher), _action(student))]


def _action(spec: SpaceSpec) -> str:
    return f"{spec.num_actions} choices" if spec.num_actions else f"{spec.action_dim} numbers"

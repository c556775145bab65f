"""The texts of `offpolicy help`, `train --help` and `resume --help`: the keys people set, or those with a word."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence

from offpolicy.config.overrides import as_override, group_options, load_config, load_values
from offpolicy.config.parsing import Spec, allowed_text, is_within
from offpolicy.config.schema import RESUMABLE, RunConfig, specs, unread_keys
from offpolicy.errors import ConfigError
from offpolicy.types import Json

ALL = "all"
ASKING = ("-h", "--help")
# What people set, the most wanted first; those that the chosen algorithm has are shown.
COMMON = (
    *("total_timesteps", "seed", "device", "run_dir", "teacher", "env.id", "env.kwargs", "env.num_envs"),
    *("env.vectorization", "algo.actor_lr", "algo.critic_lr", "algo.lr", "algo.lr_schedule", "algo.gamma", "algo.tau"),
    *("algo.batch_size", "algo.learning_starts", "algo.utd", "algo.hidden_dims", "algo.epochs", "algo.num_minibatches"),
    *("algo.clip", "algo.ent_coef", "rollout.length", "replay.capacity", "collect.num_collectors", "eval.every"),
    *("eval.episodes", "stop.reward", "init_from", "checkpoint.every", "log.every_s", "log.wandb", "timing.trace"),
    "threads.learner",
)
COMMON_RESUMED = (
    *("total_timesteps", "device", "eval.every", "eval.episodes", "checkpoint.every", "log.every_s", "log.panel"),
    *("log.wandb", "timing.trace", "threads.learner", "threads.collector"),
)
NAME_WIDTH = 32


def is_asked(words: Sequence[str]) -> bool:
    """True if one of the words asks for help."""
    return any(word in ASKING for word in words)


def train_help(words: Sequence[str]) -> str:
    """Returns the help that `offpolicy train WORDS` asks for, with the defaults of the algorithm that they choose."""
    tokens, topic = _split(words)
    is_student = "stage=adapt" in tokens and not any(token.startswith("teacher=") for token in tokens)
    cfg = load_config([*tokens, "teacher=RUN"] if is_student else tokens)
    found, values, unread = cfg.specs(), cfg.values_by_key(), unread_keys(cfg)
    if topic is not None:
        return _about(topic, found, values)
    shown = [key for key in COMMON if key not in unread]
    shown += [key for key in found if key not in specs()]  # of plug-ins
    groups = {name: options for name, options in group_options().items() if name != "stage" or cfg.algo.name == "hora"}
    return "\n".join(
        [
            "usage: offpolicy train [group=option ...] [key=value ...]",
            "",
            "groups, the first thing to choose:",
            *(_one_line(f"{name}=...", ", ".join(options)) for name, options in groups.items()),
            _one_line("config=RUN", "the configuration of another run, to change single keys of it"),
            "",
            f"keys that people set, with their values for algo={cfg.algo.name} env.id={cfg.env.name}:",
            *(_one_line(f"{key}={as_override(values[key])}", found[key].limits["doc"]) for key in shown),
            "",
            "offpolicy train algo=td3 --help       the values of another algorithm",
            "offpolicy help algo.lr                keys with a word in name or meaning",
            "offpolicy help all                    every key, with what is allowed",
        ]
    )


def resume_help(words: Sequence[str], config_of: Callable[[str], RunConfig]) -> str:
    """Returns the help that `offpolicy resume WORDS` asks for: only what may change, with the values of the run."""
    tokens, run = _split([word for word in words if word != ALL])
    load_values(tokens)  # says what is wrong with them
    values = (RunConfig() if run is None else config_of(run)).values_by_key()
    changeable = {key: spec for key, spec in specs().items() if is_within(key, RESUMABLE)}
    if ALL in words:
        return _about(ALL, changeable, values)
    whose = "of this run" if run is not None else "by default"
    return "\n".join(
        [
            "usage: offpolicy resume RUN [key=value ...]",
            "",
            "RUN is a run's directory, latest, or the beginning of a run's name (offpolicy list).",
            f"Keys that people change, with values {whose}; what is not given stays as it was:",
            *(_one_line(f"{key}={as_override(values[key])}", changeable[key].limits["doc"]) for key in COMMON_RESUMED),
            "",
            f"offpolicy resume --help all            all {len(changeable)} keys that may change",
        ]
    )


def _split(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Returns the overrides and the first other word, if there is one."""
    others = [word for word in words if "=" not in word and word not in ASKING]
    return [word for word in words if "=" in word], others[0] if others else None


def _about(topic: str, found: Mapping[str, Spec], values: Mapping[str, Json]) -> str:
    """Returns whole entries of all keys, or of those with a word in name, meaning or allowed values."""
    entries = dict[str, str]()
    for key, spec in found.items():
        needs = f"; read with {spec.limits['needs']}" if spec.limits["needs"] else ""
        meaning = f"{spec.limits['doc']}; {allowed_text(spec.hint, spec.limits)}{needs}"
        entries[key] = _wrapped(f"{key}={as_override(values[key])}", meaning)
    wanted = "" if topic == ALL else topic.strip(".=").lower()
    lines = [entry for key, entry in entries.items() if wanted in key.lower()]
    lines = lines or [entry for entry in entries.values() if wanted in " ".join(entry.lower().split())]
    if not lines:
        raise ConfigError(f"help: got {topic!r}, allowed all, or a word of a key such as lr; no key has it")
    return "\n".join(lines)


def _wrapped(name: str, meaning: str, most_lines: int | None = None) -> str:
    wrapper = textwrap.TextWrapper(
        max(60, shutil.get_terminal_size((120, 24)).columns), initial_indent="  ", placeholder=" ...",
        subsequent_indent=" " * (NAME_WIDTH + 3), max_lines=most_lines, break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return wrapper.fill(f"{name:<{NAME_WIDTH}} {meaning}")


def _one_line(name: str, meaning: str) -> str:
    return _wrapped(name, meaning, most_lines=1)

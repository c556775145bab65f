"""Whether an environment can be drawn here, tried in another process before a run with `eval.video` begins."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from offpolicy.calls import ChildError, call_in_child
from offpolicy.children import module_path
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError, OffPolicyError

MOST_S = 120.0  # seconds for imports, one reset and one picture


def check_video_of(env: EnvConfig) -> None:
    """Refuses an environment that cannot be drawn, after one picture in another process. Raises `ConfigError`."""
    request = {"env": dataclasses.asdict(env), "sys_path": module_path()}
    try:
        call_in_child("offpolicy.collect.drawable:try_picture", request, timeout_s=MOST_S)
    except ConfigError:
        raise
    except (ChildError, OffPolicyError) as error:  # a crash, a hang, or what the renderer raised
        raise ConfigError(f"eval.video: got true, allowed false: {env.id} cannot be drawn here: {error}") from error


def try_picture(request: Mapping[str, Any]) -> int:  # Any: JSON values
    """Runs in the child of `check_video_of`: draws the first picture of an episode; returns its height."""
    sys.path += [entry for entry in request["sys_path"] if entry not in sys.path]
    # Here, because the supervisor imports this module too, and has no torch.
    from offpolicy.collect.film import Film, check_drawing, draw_without_window

    draw_without_window()
    env = EnvConfig(**request["env"])
    if ":" not in env.id:
        check_drawing(env.id)
    with contextlib.closing(Film(lambda obs: obs, env, episodes=1, seed=0)) as film:
        return len(next(iter(film)))

"""The contract beside a file: what it says."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offpolicy.envs.env_adapter import codec_of
from offpolicy.envs.spaces import describe
from offpolicy.export.contract import describe_ports
from offpolicy.export.env_policy import EnvPolicy
from tests.unit.export.conftest import GROUPS, ODD, MakeScene


class Stub(gymnasium.Env[Any, Any]):
    """An environment with spaces, units and a time step."""

    metadata = {"render_modes": [], "units": {"obs": ["m", "m/s", "V"]}}  # noqa: RUF012  # Gymnasium's own name
    dt = 0.02

    def __init__(self, observed: spaces.Space[Any], acted: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observed, acted


def test_it_says_what_goes_in_and_out(make_scene: MakeScene) -> None:
    scene = make_scene("sac_discrete")
    bounds = spaces.Box(np.array([-1.0, -np.inf, 0.0], np.float32), np.array([1.0, np.inf, 5.0], np.float32))
    ports = describe_ports(scene.module, scene.codec, Stub(bounds, spaces.Discrete(3, start=4)), "Any-v0")
    (obs,) = ports["inputs"]
    assert obs == {
        "name": "obs", "dtype": "float32", "shape": ["batch", 3], "env_dtype": "float32",
        "low": [-1.0, None, 0.0], "high": [1.0, None, 5.0], "units": ["m", "m/s", "V"],
    }  # fmt: skip
    action, chances = ports["outputs"]
    assert (action["dtype"], action["shape"], action["low"], action["high"]) == ("int64", ["batch"], [4.0], [6.0])
    assert (chances["name"], chances["shape"], chances["choices"]) == ("probability", ["batch", 3], [3])
    assert ports["step_s"] == 0.02
    assert ports["unread"] == []
    json.dumps(ports, allow_nan=False)


def test_an_actor_of_one_group_takes_that_group_alone(make_scene: MakeScene) -> None:
    scene = make_scene("sac_group")
    ports = describe_ports(scene.module, scene.codec, Stub(GROUPS, ODD), "Any-v0")
    assert [(port["name"], port["shape"]) for port in ports["inputs"]] == [("privileged", ["batch", 2])]
    assert ports["unread"] == ["obs", "proprio_hist"]


def test_units_of_gymnasiums_own_tasks_fit_their_sizes(make_scene: MakeScene) -> None:
    env = gymnasium.make("Pendulum-v1")
    codec = codec_of(env)
    assert codec == describe(env.observation_space, env.action_space, 200)
    module = EnvPolicy(make_scene("sac").policy, codec)
    ports = describe_ports(module, codec, env, "Pendulum-v1")
    assert [len(port["units"]) for port in (*ports["inputs"], *ports["outputs"])] == [3, 1]

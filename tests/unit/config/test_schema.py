"""Every field refuses what it must, names the key and says what is allowed; the defaults survive a round trip."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offpolicy.config.parsing import merge
from offpolicy.config.schema import RunConfig, all_keys
from offpolicy.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Leaf:
    key: str
    kind: Any
    is_optional: bool
    limits: dict[str, Any]


def leaves(cls: Any = RunConfig, prefix: str = "") -> Iterator[Leaf]:
    hints = typing.get_type_hints(cls)
    for spec in dataclasses.fields(cls):
        hint = hints[spec.name]
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{spec.name}.")
        else:
            is_union = isinstance(hint, types.UnionType)
            is_optional = types.NoneType in typing.get_args(hint)
            kind = typing.get_args(hint)[0] if is_union else typing.get_origin(hint) or hint
            yield Leaf(prefix + spec.name, kind, is_optional, dict(spec.metadata))


LEAVES = {leaf.key: leaf for leaf in leaves()}
NUMBERS = [key for key, leaf in LEAVES.items() if leaf.kind in (int, float)]
CHOSEN = [key for key, leaf in LEAVES.items() if "choices" in leaf.limits]
WRONG_TYPES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.one_of(st.integers(), st.text(), st.floats(), st.lists(st.booleans())),
    int: st.one_of(st.booleans(), st.text(), st.sampled_from([0.5, math.nan, math.inf]), st.lists(st.integers())),
    float: st.one_of(st.booleans(), st.text(), st.sampled_from([math.nan, math.inf, -math.inf]), st.just({"a": 1})),
    str: st.one_of(st.booleans(), st.integers(), st.floats(), st.lists(st.text())),
    tuple: st.one_of(st.integers(), st.text(), st.just([]), st.just([64, "64"]), st.just([0.5]), st.just([True])),
    dict: st.one_of(st.integers(), st.text(), st.lists(st.integers())),
}


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def problems(raw: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_mapping(raw)
    return caught.value.problems


def outside(limits: dict[str, Any]) -> st.SearchStrategy[int]:
    """Whole numbers that the limits exclude."""
    low = limits.get("ge", limits.get("gt"))
    high = limits.get("le", limits.get("lt"))
    below = (
        [] if low is None else [st.integers(max_value=math.ceil(low) - 1), *([st.just(low)] if "gt" in limits else [])]
    )
    above = (
        []
        if high is None
        else [st.integers(min_value=math.floor(high) + 1), *([st.just(high)] if "lt" in limits else [])]
    )
    return st.one_of(*below, *above)


@pytest.mark.parametrize("key", [key for key in NUMBERS if {"ge", "gt", "le", "lt"} & LEAVES[key].limits.keys()])
@given(data=st.data())
def test_a_number_out_of_range_is_refused_with_key_and_range(key: str, data: st.DataObject) -> None:
    limits = LEAVES[key].limits
    value = data.draw(outside(limits))
    (problem,) = problems(nested(key, value))
    assert problem.startswith(f"{key}: got {value}")
    assert all(str(limits[bound]) in problem for bound in ("ge", "gt", "le", "lt") if bound in limits)


@pytest.mark.parametrize("key", list(LEAVES))
@given(data=st.data())
def test_a_value_of_another_type_is_refused_with_its_key(key: str, data: st.DataObject) -> None:
    value = data.draw(WRONG_TYPES[LEAVES[key].kind])
    assume(not (isinstance(value, bool) and str(value).lower() in LEAVES[key].limits.get("choices", ())))
    (problem,) = problems(nested(key, value))
    assert problem.startswith(f"{key}: got {value!r} ({type(value).__name__}), allowed ")


@pytest.mark.parametrize("key", [key for key, leaf in LEAVES.items() if not leaf.is_optional])
def test_null_is_refused_where_it_has_no_meaning(key: str) -> None:
    (problem,) = problems(nested(key, None))
    assert problem.startswith(f"{key}: got None")


@pytest.mark.parametrize("key", [key for key, leaf in LEAVES.items() if leaf.is_optional])
def test_null_is_accepted_where_it_has_one(key: str) -> None:
    value = RunConfig.from_mapping(nested(key, None))
    for part in key.split("."):
        value = getattr(value, part)
    assert value is None


@pytest.mark.parametrize("key", list(LEAVES))
def test_a_typo_is_refused_with_the_key_that_was_meant(key: str) -> None:
    typo = key + key[-1]
    (problem,) = problems(nested(typo, 1))
    assert problem.startswith(f"{typo}: unknown key; did you mean {key}? known keys here: ")


@pytest.mark.parametrize(("given_as", "meant"), [(True, "true"), (False, "false"), ("auto", "auto"), ("true", "true")])
def test_a_choice_that_yaml_reads_as_a_bool_is_the_word(given_as: object, meant: str) -> None:
    assert RunConfig.from_mapping(nested("eval.beside", given_as)).eval.beside == meant


@pytest.mark.parametrize("hook", ["", "module", "module:", ":function", "a b:c", "module:function()"])
def test_a_hook_is_a_module_and_a_function(hook: str) -> None:
    (problem,) = problems(nested("eval.hook", hook))
    assert problem == f"eval.hook: got {hook!r}, allowed module:function, such as hooks:draw, or null"


@pytest.mark.parametrize("key", CHOSEN)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(key: str) -> None:
    choices = LEAVES[key].limits["choices"]
    (problem,) = problems(nested(key, choices[0] + "x"))
    assert f"allowed one of {', '.join(choices)}" in problem
    assert "did you mean" in problem


def test_a_key_in_the_wrong_section_is_refused_with_its_home() -> None:
    (problem,) = problems({"gamma": 0.9})
    assert problem.startswith("gamma: unknown key; did you mean algo.gamma?")


def test_all_problems_are_reported_at_once() -> None:
    found = problems({"algo": {"gamma": 2, "tou": 1}, "seed": "x", "env": 3, "nosuch": 1})
    assert sorted(problem.split(":")[0] for problem in found) == ["algo.gamma", "algo.tou", "env", "nosuch", "seed"]


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_a_known_device_is_accepted(device: str) -> None:
    assert RunConfig.from_mapping({"device": device}).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:0:1", "cpu:1", "auto:0", "cuda:²", "", "CUDA"])
def test_an_unknown_device_is_refused(device: str) -> None:
    assert problems({"device": device}) == (f"device: got {device!r}, allowed auto, cpu, cuda or cuda:<index>",)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"algo": {"learning_starts": 20_000}}, "algo.learning_starts"),
        ({"replay": {"capacity": 999}}, "replay.capacity"),
        ({"algo": {"batch_size": 5000}, "replay": {"capacity": 4999}}, "replay.capacity"),
        ({"env": {"num_envs": 600}, "replay": {"capacity": 1199}}, "replay.capacity"),
        ({"runner": {"world_size": 2}}, "runner.world_size"),
        ({"runner": {"name": "multi_gpu", "world_size": 3}}, "algo.batch_size"),
        ({"runner": {"name": "multi_gpu", "backend": "nccl"}, "device": "cpu"}, "runner.backend"),
        ({"runner": {"name": "multi_gpu", "backend": "nccl", "world_size": 2}, "device": "cuda:0"}, "runner.backend"),
        ({"runner": {"name": "double_buffer"}, "replay": {"source": "resident"}}, "replay.source"),
        ({"collect": {"num_collectors": 300}, "replay": {"capacity": 2000}}, "collect.num_collectors"),
        (
            {"collect": {"num_collectors": 200}, "env": {"num_envs": 10}, "replay": {"capacity": 3000}},
            "replay.capacity",
        ),
        ({"env": {"id": ""}}, "env.id"),
    ],
)
def test_an_impossible_combination_is_refused(raw: dict[str, Any], key: str) -> None:
    (problem,) = problems(raw)
    assert problem.startswith(f"{key}: got ")


APPO = {"algo": {"name": "appo"}, "runner": {"name": "appo"}, "rollout": {"length": 8}, "env": {"num_envs": 4}}


def appo(**sections: Any) -> dict[str, Any]:
    return merge(APPO, sections)


def adapting(**sections: Any) -> dict[str, Any]:
    return merge(appo(algo={"name": "hora", "stage": "adapt"}, teacher="runs/teacher"), sections)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (
            {"algo": {"clip": 0.3}},
            "algo.clip: got 0.3, allowed nothing with algo=sac: it is for appo, hora stage=teach",
        ),
        (
            {"algo": {"name": "td3", "auto_alpha": False}},
            "algo.auto_alpha: got False, allowed nothing with algo=td3: it is for sac",
        ),
        ({"algo": {"target_noise": 0.1}}, "algo.target_noise: got 0.1, allowed nothing with algo=sac: it is for td3"),
        (appo(algo={"tau": 0.01}), "algo.tau: got 0.01, allowed nothing with algo=appo: it is for sac, td3"),
        ({"rollout": {"length": 8}}, "rollout.length: got 8, allowed nothing with algo=sac: it is for appo, hora"),
        (
            appo(replay={"capacity": 5000}),
            "replay.capacity: got 5000, allowed nothing with algo=appo: it is for sac, td3",
        ),
        (
            appo(replay={"demos": "a.npz"}),
            "replay.demos: got 'a.npz', allowed nothing with algo=appo: it is for sac, td3",
        ),
        (appo(algo={"utd": 2}), "algo.utd: got 2.0, allowed nothing with algo=appo: it is for sac, td3"),
        (appo(algo={"latent_dim": 4}), "algo.latent_dim: got 4, allowed nothing with algo=appo: it is for hora"),
        (
            adapting(algo={"clip": 0.3}),
            "algo.clip: got 0.3, allowed nothing with algo=hora stage=adapt: it is for appo, hora stage=teach",
        ),
        (
            adapting(algo={"lr_schedule": "kl_adaptive"}),
            "algo.lr_schedule: got kl_adaptive, allowed constant or linear with stage=adapt: it has no KL",
        ),
        (
            adapting(teacher=None),
            "teacher: got null, allowed a run directory of algo=hora stage=teach, to begin with",
        ),
        (appo(teacher="runs/a"), "teacher: got 'runs/a', allowed nothing without algo=hora stage=adapt"),
    ],
)
def test_an_option_of_another_algorithm_is_refused_by_name(raw: dict[str, Any], problem: str) -> None:
    assert problems(raw) == (problem,)


def test_an_option_of_another_algorithm_may_stand_at_its_default() -> None:
    assert RunConfig.from_mapping(appo(algo={"tau": 0.005, "target_entropy": None})).algo.tau == 0.005


@pytest.mark.parametrize(
    ("sections", "start"),
    [
        (
            {"algo": {"num_minibatches": 5}},
            "algo.num_minibatches: got 5, allowed a divisor of the 32 rows of a batch (rollout.length=8 x",
        ),
        (
            {"algo": {"num_minibatches": 64}, "collect": {"num_collectors": 3}},
            "algo.num_minibatches: got 64, allowed a divisor of the 96 rows",
        ),
        (
            {"collect": {"num_collectors": 3}, "runner": {"world_size": 2}},
            "collect.num_collectors: got 3, allowed a multiple of runner.world_size=2",
        ),
        ({"total_timesteps": 31}, "total_timesteps: got 31, allowed at least 32, one batch of rollouts"),
        (
            {"total_timesteps": 127, "collect": {"num_collectors": 4}, "runner": {"world_size": 2}},
            "total_timesteps: got 127, allowed at least 128",
        ),
        ({"runner": {"name": "single_gpu"}}, "runner: got single_gpu, allowed appo with algo=appo"),
        ({"runner": {"name": "multi_gpu", "world_size": 1}}, "runner: got multi_gpu, allowed appo with algo=appo"),
        (
            {"algo": {"name": "sac"}, "rollout": {"length": 128}},
            "runner: got appo, allowed single_gpu, double_buffer or multi_gpu with algo=sac",
        ),
    ],
)
def test_rollouts_that_cannot_be_learnt_from_are_refused(sections: dict[str, Any], start: str) -> None:
    (problem,) = problems(appo(**sections))
    assert problem.startswith(start)


@pytest.mark.parametrize(
    "sections",
    [
        {"total_timesteps": 32},
        {"algo": {"num_minibatches": 32}},
        {"collect": {"num_collectors": 4}, "runner": {"world_size": 2}, "algo": {"num_minibatches": 64}},
    ],
)
def test_rollouts_that_divide_are_accepted(sections: dict[str, Any]) -> None:
    config = RunConfig.from_mapping(appo(**sections))
    assert (config.algo.learns_from_rollouts, config.collect_mode) == (True, "free")


def valid_trees() -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abc_", min_size=1, max_size=5)
    plain = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.none())
    kwargs = st.dictionaries(names, st.one_of(plain, st.lists(plain), st.dictionaries(names, plain)), max_size=3)
    algo = st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["sac", "td3"]),
            "gamma": st.floats(0.0, 1.0),
            "utd": st.floats(0.01, 64.0),
            "hidden_dims": st.lists(st.integers(1, 4096), min_size=1, max_size=4),
            "max_grad_norm": st.one_of(st.none(), st.floats(1e-6, 1e6)),
            "learning_starts": st.integers(1, 19_999),
        },
    )
    env = st.fixed_dictionaries({}, optional={"kwargs": kwargs, "num_envs": st.integers(1, 65536)})
    return st.fixed_dictionaries({"algo": algo, "env": env}, optional={"seed": st.integers(0, 2**31 - 1)})


@given(raw=valid_trees())
def test_a_configuration_survives_json(raw: dict[str, Any]) -> None:
    config = RunConfig.from_mapping(raw)
    assert RunConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


@given(raw=valid_trees())
def test_given_values_arrive_and_others_keep_their_defaults(raw: dict[str, Any]) -> None:
    got = RunConfig.from_mapping(raw).to_mapping()
    assert {
        **got,
        **{key: {**got[key], **value} if isinstance(value, dict) else value for key, value in raw.items()},
    } == got
    assert got["replay"] == RunConfig().to_mapping()["replay"]


def test_every_key_is_documented() -> None:
    assert [key for key, leaf in LEAVES.items() if not leaf.limits["doc"]] == []
    assert all_keys() == list(LEAVES)


def test_the_defaults_are_valid() -> None:
    assert RunConfig.from_mapping({}) == RunConfig()


def test_a_number_too_large_for_a_float_is_refused() -> None:
    (problem,) = problems({"log": {"every_s": 10**400}})
    assert problem.startswith("log.every_s: got 1000")


def test_the_replay_never_allocates_more_rows_than_the_run_writes() -> None:
    config = RunConfig.from_mapping({"total_timesteps": 3000, "env": {"num_envs": 8}})
    assert config.replay_rows == 3008
    assert RunConfig.from_mapping({"replay": {"capacity": 2000}}).replay_rows == 2000


def test_the_collection_mode_defaults_to_the_runners() -> None:
    assert RunConfig().collect_mode == "alternate"
    assert RunConfig.from_mapping({"collect": {"mode": "free"}}).collect_mode == "free"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"replay": {"demo_share": 0.5}}, "replay.demo_share: got 0.5, allowed nothing without replay.demos"),
        (
            {"replay": {"demos": "a.npz", "demo_share": 1.0}},
            "replay.demo_share: got 1.0, allowed a number in (0.0, 1.0)",
        ),
        *(
            (
                {"replay": {"demos": "a.npz", "demo_share": share}, "algo": {"batch_size": 16}},
                f"replay.demo_share: got {share}, allowed a share that is at least one of the 16 rows of a batch of one"
                " rank, and not all of them",
            )
            for share in (0.01, 0.99)
        ),
    ],
)
def test_a_share_of_demonstrations_that_cannot_be_is_refused(raw: dict[str, Any], problem: str) -> None:
    assert problems(raw) == (problem,)

"""What may change when a run is resumed, and which function each process starts with."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy.checkpoint import CheckpointStore
from offpolicy.checkpoint.content import fingerprint
from offpolicy.config.run_files import read_spec, write_config
from offpolicy.config.schema import RunConfig
from offpolicy.errors import ConfigError
from offpolicy.launch import preflight
from offpolicy.types import SpaceSpec
from runners import train
from tests.fakes import shared_state

SPEC = SpaceSpec(17, 6, (-1.0,) * 6, (1.0,) * 6)


def config(**tree: object) -> RunConfig:
    return RunConfig.from_mapping(tree)


def test_what_would_make_another_experiment_cannot_change_at_a_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train.resume(tmp_path, {"algo": {"gamma": 0.9}, "seed": 2, "log": {"every_s": 1.0}, "total_timesteps": 10})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["algo.gamma", "seed"]


@pytest.mark.parametrize("wanted", [150, 150.0])
def test_a_budget_below_what_a_run_has_done_is_refused(tmp_path: Path, wanted: float) -> None:
    write_config(tmp_path, config(algo={"learning_starts": 10}), SPEC)
    for env_steps in (100, 200):
        with CheckpointStore(tmp_path / "checkpoints").begin(env_steps) as draft:
            draft.add_json("state", shared_state(env_steps))
    with pytest.raises(ConfigError, match=r"got 150, allowed at least 200, .*; write total_timesteps=400"):
        train.resume(tmp_path, {"total_timesteps": wanted})


@pytest.mark.parametrize(
    ("overrides", "demos", "share"),
    [({"demos": None}, None, 0.5), ({"demo_share": 0.75}, "a.npz", 0.75), ({"demos": "b.npz"}, "b.npz", 0.5)],
)
def test_a_run_may_go_on_without_its_demonstrations_or_with_another_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overrides: dict[str, Any], demos: str | None, share: float
) -> None:
    saved, launched = config(replay={"demos": "a.npz", "demo_share": 0.5}), list[RunConfig]()
    write_config(tmp_path, saved, SPEC)
    monkeypatch.setattr(train, "train", lambda cfg, *_, **__: launched.append(cfg) or 0)
    assert train.resume(tmp_path, {"replay": overrides}) == 0
    assert (launched[0].replay.demos, launched[0].replay.demo_share) == (demos, share)
    preflight.check_same(launched[0], saved)


CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # before, now, refusal
    "shape": ({"action_shape": (6,)}, {"action_shape": (2, 3)}, r"action_shape was \(6,\), is \(2, 3\)"),
    "bounds": ({}, {"action_high": (2.0,) * 6}, r"action_high was \(1\.0, .* is \(2\.0, "),
    "order of a Dict": (
        {"obs_keys": ("a", "b"), "obs_shapes": ((8,), (9,))}, {"obs_keys": ("b", "a"), "obs_shapes": ((9,), (8,))},
        "obs_keys was .* obs_shapes was ",
    ),
    "a shape that was not recorded": ({}, {"action_shape": (2, 3)}, ""),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED)
def test_a_run_does_not_go_on_with_other_spaces_of_the_same_size(tmp_path: Path, change: str) -> None:
    """It went on, and recorded the new ones as its own: a policy of other actions."""
    before, now, refusal = CHANGED[change]
    old, new = replace(SPEC, **before), replace(SPEC, **now)
    write_config(tmp_path, config(), old)
    state = SimpleNamespace(fingerprint=fingerprint(config(), old))
    run: Any = SimpleNamespace(path=tmp_path, checkpoint=SimpleNamespace(path=tmp_path, read=lambda *_: state))
    run.begin = lambda: None
    plan: Any = SimpleNamespace(cfg=config())
    if refusal:
        with pytest.raises(ConfigError, match=f"(?s){refusal}.*the spaces of the run .* cannot change when it goes on"):
            train.run_config(plan, run, new)
    else:
        train.run_config(plan, run, new)
    assert read_spec(tmp_path) == (old if refusal else new)


@pytest.mark.parametrize("runner", ["single_gpu", "double_buffer", "multi_gpu", "appo"])
def test_every_process_starts_in_a_module_of_the_runners(runner: str) -> None:
    cfg = config(runner={"name": runner}, **({"algo": {"name": "appo"}} if runner == "appo" else {}))
    targets = [train.entry_point(role, cfg) for role in ("learner", "collector", "evaluator")]
    assert targets == [f"runners.{runner}:learner_main", "runners.collector:main", "runners.evaluator:main"]
    assert all(callable(pkgutil.resolve_name(target)) for target in targets)

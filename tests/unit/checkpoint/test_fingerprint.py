"""What a checkpoint must share with the configuration that loads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offpolicy.checkpoint.fingerprint import fingerprint
from offpolicy.config.schema import RunConfig
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(3, 1, (-1.0,), (1.0,))
APPO = {"algo": {"name": "appo"}, "runner": {"name": "appo"}}
HORA = {"algo": {"name": "hora"}, "runner": {"name": "appo"}}


def of(**sections: Any) -> dict[str, Any]:
    return fingerprint(RunConfig.from_mapping(sections), SPEC)


def test_it_is_json_data() -> None:
    assert json.loads(json.dumps(of(**HORA))) == of(**HORA)


@pytest.mark.parametrize("algo", [{"name": "td3"}, {"hidden_dims": [64]}, {"n_step": 3}, {"gamma": 0.9}])
def test_what_changes_networks_or_rows_changes_it(algo: dict[str, Any]) -> None:
    assert of(algo=algo) != of()


@pytest.mark.parametrize("algo", [{"actor_lr": 1e-3}, {"tau": 0.1}, {"batch_size": 64}])
def test_what_changes_only_how_it_is_trained_does_not(algo: dict[str, Any]) -> None:
    assert of(algo=algo) == of()


def test_rollouts_and_stages_have_keys_of_their_own() -> None:
    assert of(**APPO).keys() - of().keys() == {"rollout.length", "algo.normalize_value"}
    assert of(**HORA).keys() - of(**APPO).keys() == {"algo.stage", "algo.latent_dim", "algo.encoder_dims"}

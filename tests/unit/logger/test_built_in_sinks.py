"""Which sinks `log` switches on, and with what they are opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import offpolicy.logger.otlp
import offpolicy.logger.prometheus
import offpolicy.logger.tensorboard
import offpolicy.logger.wandb
from offpolicy.config.schema import RunConfig
from offpolicy.logger.built_in_sinks import BuiltInSinks
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import RunHeader


def sinks_of(run_dir: Path, header: RunHeader, log: dict[str, Any], warnings: list[str]) -> BuiltInSinks:
    cfg = RunConfig.from_mapping({"log": log})
    return BuiltInSinks(run_dir, {}, cfg.log, header, None, None, True, None, warnings.append)


@pytest.fixture
def opened_with(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """Puts recorders in place of the optional back-ends; holds by sink what it was opened with."""
    found: dict[str, tuple[Any, ...]] = {}

    def put(module: Any, name: str) -> None:
        def open_it(*arguments: Any, **options: Any) -> None:
            found[name] = (*arguments, *([options] if options else []))

        monkeypatch.setattr(module, name, open_it)

    put(offpolicy.logger.tensorboard, "TensorBoardSink")
    put(offpolicy.logger.wandb, "WandbSink")
    put(offpolicy.logger.prometheus, "PrometheusSink")
    put(offpolicy.logger.otlp, "OtlpSink")
    return found


@pytest.mark.parametrize(
    ("log", "names"),
    [
        ({}, ["metrics.jsonl", "tensorboard"]),
        ({"tensorboard": "full"}, ["metrics.jsonl", "tensorboard"]),
        ({"tensorboard": False}, ["metrics.jsonl"]),
        ({"tensorboard": False, "wandb": "offline"}, ["metrics.jsonl", "wandb"]),
        ({"tensorboard": False, "prometheus_port": 9400}, ["metrics.jsonl", "prometheus"]),
        ({"tensorboard": False, "otlp_endpoint": "http://127.0.0.1:4318"}, ["metrics.jsonl", "otlp"]),
    ],
)
def test_an_option_opens_its_sink_and_no_other(
    tmp_path: Path, header: RunHeader, opened_with: Any, log: dict[str, Any], names: list[str]
) -> None:
    warnings: list[str] = []
    assert [sink.name for sink in sinks_of(tmp_path, header, log, warnings).open()] == names
    assert not warnings


def test_records_of_updates_that_are_made_again_are_moved_out(tmp_path: Path, header: RunHeader) -> None:
    lines = [f'{{"env_steps": {steps}, "train/n_updates": {steps}}}\n' for steps in (10, 20, 30)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    cfg = RunConfig.from_mapping({"log": {"tensorboard": False}})
    BuiltInSinks(tmp_path, {}, cfg.log, header, 30, 15, True, None, print).open()
    assert (tmp_path / "metrics.jsonl").read_text() == lines[0]
    assert (tmp_path / "metrics.superseded.jsonl").read_text() == "".join(lines[1:])


def test_a_back_end_gets_the_options_that_are_its_own(tmp_path: Path, header: RunHeader, opened_with: Any) -> None:
    log = {
        "tensorboard": False, "wandb": "online", "wandb_project": "mine",
        "prometheus_port": 9400, "otlp_endpoint": "http://127.0.0.1:4318",
    }  # fmt: skip
    sinks = sinks_of(tmp_path, header, log, [])
    sinks.open()
    assert opened_with == {
        "WandbSink": (tmp_path, {}, "mine", "online", sinks.warn, {"last_eval_step": None}),
        "PrometheusSink": (9400, sinks.log.prometheus_address, str(tmp_path), header),
        "OtlpSink": ("http://127.0.0.1:4318", str(tmp_path), header, sinks.warn),
    }


def test_what_a_resumed_run_goes_on_from_reaches_every_back_end(
    tmp_path: Path, header: RunHeader, opened_with: Any
) -> None:
    resumed, start = (
        replace(header, last_eval_step=25),
        Provenance("offpolicy train", None, "abc", "2026", "host", None),
    )
    log = RunConfig.from_mapping({"log": {"tensorboard": "full", "wandb": "offline"}}).log
    BuiltInSinks(tmp_path, {}, log, resumed, 30, 15, True, start, print).open()
    assert opened_with == {
        "TensorBoardSink": (tmp_path, {}, resumed, 30, {"is_full": True, "provenance": start}),
        "WandbSink": (tmp_path, {}, "offpolicy", "offline", print, {"last_eval_step": 25}),
    }


def test_a_back_end_that_fails_is_left_out_with_a_warning(
    tmp_path: Path, header: RunHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the port is in use")

    monkeypatch.setattr(offpolicy.logger.prometheus, "PrometheusSink", fail)
    warnings: list[str] = []
    sinks = sinks_of(tmp_path, header, {"tensorboard": False, "prometheus_port": 9400}, warnings).open()
    assert [sink.name for sink in sinks] == ["metrics.jsonl"]
    assert [text.split(" for")[0] for text in warnings] == ["warning: prometheus is disabled"]
    assert "the port is in use" in warnings[0]

"""Help shows what people set, with the algorithm's values; a word finds the rest; resume shows what may change."""

from __future__ import annotations

import pytest

from offpolicy.config.help import COMMON_RESUMED, resume_help, train_help
from offpolicy.config.overrides import load_config
from offpolicy.config.schema import RESUMABLE, RunConfig, specs
from offpolicy.errors import ConfigError

MOST_LINES = 45
ALGORITHMS = ["sac", "td3", "appo", "hora"]


def keys_in(text: str) -> list[str]:
    return [line.split("=")[0].strip() for line in text.splitlines() if line.startswith("  ") and line[2] != " "]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_train_help_is_a_screen_of_keys_that_the_algorithm_has(algo: str) -> None:
    lines = train_help([f"algo={algo}", "--help"]).splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 80
    shown = [
        line.split()[0] for line in lines if line.startswith("  ") and "=..." not in line and "config=" not in line
    ]
    assert 25 <= len(shown) <= 27
    load_config([f"algo={algo}", *(token for token in shown if not token.startswith("env.kwargs"))])


@pytest.mark.parametrize(("algo", "value"), [("sac", "algo.actor_lr=0.0003"), ("td3", "algo.actor_lr=0.001")])
def test_the_values_are_those_of_the_algorithm(algo: str, value: str) -> None:
    assert f"  {value} " in train_help([f"algo={algo}", "-h"])


def test_a_student_needs_no_teacher_to_ask_for_help() -> None:
    assert "  teacher=RUN " in train_help(["algo=hora", "stage=adapt", "--help"])


def test_a_word_finds_keys_by_name_and_else_by_meaning() -> None:
    assert keys_in(train_help(["--help", "algo.lr"])) == ["algo.lr", "algo.lr_schedule"]
    assert "replay.demos" in keys_in(train_help(["--help", "Minari"]))
    with pytest.raises(ConfigError, match="help: got 'nosuchword', allowed all, or a word of a key"):
        train_help(["--help", "nosuchword"])


def test_all_keys_are_shown_on_demand() -> None:
    shown = keys_in(train_help(["--help", "all"]))
    assert [key for key in specs() if key not in shown] == []


def test_resume_help_shows_only_what_may_change() -> None:
    def config_of(word: str) -> RunConfig:
        assert word == "latest"
        return load_config(["total_timesteps=777000"])

    text = resume_help(["latest", "--help"], config_of)
    assert "  total_timesteps=777000 " in text
    assert [key for key in keys_in(text) if key not in COMMON_RESUMED] == []
    everything = keys_in(resume_help(["--help", "all"], config_of))
    assert [key for key in everything if not key.startswith(RESUMABLE)] == []

from __future__ import annotations

import json

import pytest

from offpolicy.commands.schema import schema
from offpolicy.config.json_schema import json_schema
from offpolicy.errors import ConfigError


@pytest.mark.parametrize("section", [None, "algo"])
def test_the_schema_is_printed_as_json(section: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(section) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema(section)))


def test_an_unknown_section_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="--section: got 'seed', allowed one of algo, runner, env"):
        schema("seed")

from __future__ import annotations

from offpolicy.launch.finding import Finding, Level


def test_a_finding_is_plain_text_in_json() -> None:
    found = Finding("machine", "cores", "1 of 8", Level.SLOW, "allow a second")
    expected = {"section": "machine", "name": "cores", "value": "1 of 8", "level": "slow", "fix": "allow a second"}
    assert found.to_mapping() == expected

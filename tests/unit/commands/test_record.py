"""`offpolicy record`: what it refuses before a policy is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpolicy.commands.record import record
from offpolicy.commands.saved_run import PolicyChoice
from offpolicy.errors import ConfigError

CHOICE = PolicyChoice(seed=None, step=None, device="cpu", overrides={})


@pytest.mark.parametrize("name", ["there.npz", "demos.txt", "nowhere/demos.npz"])
def test_only_a_new_npz_where_there_is_a_directory_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.npz").write_bytes(b"precious")
    with pytest.raises(ConfigError, match=r"--out: got .*, allowed a new file in a directory that exists, ending in"):
        record(tmp_path / "run", CHOICE, out=tmp_path / name, episodes=1)
    assert (tmp_path / "there.npz").read_bytes() == b"precious"

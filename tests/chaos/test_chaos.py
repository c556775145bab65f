"""Two minutes of chaos, and two starts that chaos rarely meets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import main
from tests.chaos.disturbances import Disturbance
from tests.chaos.life import live
from tests.chaos.scenes import SCENES

pytestmark = pytest.mark.slow


@pytest.mark.mp
@pytest.mark.promise("no-torn-row", "no-silent-success", "no-orphan")
@pytest.mark.timeout(1200)
def test_two_minutes_of_chaos_violate_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["--seed", "8", "--minutes", "2", "--directory", str(tmp_path)])
    assert code == 0, capsys.readouterr().out


@pytest.mark.mp
@pytest.mark.timeout(600)
@pytest.mark.parametrize("action", ["ENOSPC", "kill"])
def test_an_attempt_that_cannot_be_moved_aside_is_moved_by_the_next_start(tmp_path: Path, action: str) -> None:
    lost = Disturbance("message.read@role=supervisor,n=1:kill")
    story = live(SCENES[0], tmp_path, [lost, Disturbance(f"run_dir.aside@role=supervisor,n=2:{action}")])
    assert story.violations == []
    assert [code for _, code in story.lives] == [-9, 2 if action == "ENOSPC" else -9, 0]
    assert story.num_fired == 2
    moved = {path.name: path.parent.name for path in (tmp_path / "run").glob("attempt-*/*")}
    assert {"config.yaml", "spaces.json", "train.log"} <= moved.keys()
    assert sorted(set(moved.values())) == ["attempt-0", "attempt-1"]

"""What a rank's batches are made of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from offpolicy.config.schema import RunConfig
from offpolicy.training.feeds import demo_share
from offpolicy.types import SpaceSpec

SPEC = SpaceSpec(1, 1, (-1.0,), (1.0,))


def session(directory: Path, start_path: tuple[int, ...]) -> Any:
    """The rank of a run that starts at an env step, with ten demonstrations that encode their row."""
    row = np.arange(10, dtype=np.float32)
    given = dict.fromkeys(("obs", "next_obs"), row[:, None]) | {"action": np.zeros((10, 1)), "reward": row}
    np.savez(directory / "demos.npz", **given, terminated=row == 9, truncated=row < 0)
    cfg = RunConfig.from_mapping({"replay": {"demos": str(directory / "demos.npz")}})
    return SimpleNamespace(
        seat=SimpleNamespace(cfg=cfg, rank=0, num_ranks=1, start_path=start_path), job=SimpleNamespace(spec=SPEC)
    )


def test_a_continuation_that_cannot_restore_its_place_does_not_repeat_the_head_of_the_order(tmp_path: Path) -> None:
    heads = set()
    for start_path in ((), (300,), (400,)):
        share = demo_share(session(tmp_path, start_path))
        assert share is not None
        heads.add(tuple(share.rows.take(10).tolist()))
    assert len(heads) == 3

from __future__ import annotations

import json
from pathlib import Path

from offpolicy.logger.sinks.jsonl import JsonlSink
from offpolicy.logger.sinks.safe_sink import SafeSink
from offpolicy.types import EpisodeRecord


def test_a_record_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.write({"env_steps": 10, "perf/bottleneck": "learner(train 94%)"})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"env_steps": 10, "perf/bottleneck": "learner(train 94%)"}\n'
    sink.close()


def test_an_episode_leaves_out_an_unknown_success(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path, None)
    sink.episode(EpisodeRecord(200, 3, -1.5, 200, False, True, float("nan")))
    sink.episode(EpisodeRecord(400, 3, -1.5, 200, True, False, 1.0))
    sink.close()
    first, second = (json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines())
    assert first == {
        "env_steps": 200,
        "env_index": 3,
        "ep_return": -1.5,
        "ep_length": 200,
        "terminated": False,
        "truncated": True,
    }
    assert second["success"] == 1.0


def test_a_full_disk_disables_the_sink_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    warnings: list[str] = []
    sink = SafeSink("metrics.jsonl", JsonlSink(tmp_path, None), warnings.append)
    for steps in range(3):
        sink.write({"env_steps": steps})
    sink.close()
    assert (len(warnings), sink.num_dropped) == (1, 3)
    assert "No space left on device" in warnings[0]

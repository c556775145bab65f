"""Streams: independent, named, restorable."""

from __future__ import annotations

import json

from offpolicy.seeding import env_seed, generator, generator_state, set_generator_state, torch_seed


def test_streams_of_other_names_or_seeds_differ_and_the_same_repeat() -> None:
    seeds = {torch_seed(1, "learner"), torch_seed(1, "replay"), torch_seed(2, "learner"), torch_seed(1, "replay", 0)}
    assert len(seeds) == 4
    assert torch_seed(1, "learner") == torch_seed(1, "learner")
    assert 0 <= env_seed(1, "collector", 0) < 2**31


def test_a_generator_continues_where_it_was_saved_through_json() -> None:
    source = generator(3, "replay")
    source.integers(0, 10, 7)
    saved = json.loads(json.dumps(generator_state(source)))
    expected = source.integers(0, 10**9, 5).tolist()
    copy = generator(99, "other")
    set_generator_state(copy, saved)
    assert copy.integers(0, 10**9, 5).tolist() == expected

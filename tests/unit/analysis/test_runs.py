"""Labels, seeds and what their configurations have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from offpolicy.analysis.runs import paths_by_label, read_runs, warnings
from offpolicy.errors import ConfigError

MakeRun = Callable[..., Path]
SECOND_SEED = {"seed": 2, "run_dir": "y"}


def refusal(*words: str | Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_runs([str(word) for word in words])
    return str(refused.value)


def test_a_run_without_a_label_is_named_by_the_unique_end_of_its_path_also_with_an_equals_sign(
    make_run: MakeRun,
) -> None:
    paths = [make_run("x/run"), make_run("y/run"), make_run("z")]
    assert list(paths_by_label([str(path) for path in paths])) == ["x/run", "y/run", "z"]
    path = make_run("lr=0.1")
    assert paths_by_label([str(path)]) == {"lr=0.1": [path]}
    assert paths_by_label([f"low={path}"]) == {"low": [path]}


def test_one_run_twice_is_refused_but_under_two_labels(make_run: MakeRun) -> None:
    path = make_run("run")
    assert "is given twice" in refusal(path, path)
    assert "got 1 label, needed two or more" in refusal(path)
    assert "given twice under one label" in refusal(f"a={path}", f"a={path}", f"b={path}")
    assert len(read_runs([f"a={path}", f"b={path}"])) == 2


def test_all_problems_come_at_once(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    problem = refusal(make_run("run"), tmp_path / "empty", tmp_path / "missing")
    assert "neither metrics.jsonl" in problem
    assert "no such directory" in problem


def test_a_run_alone_needs_records_and_one_of_several_seeds_need_not_have_many(make_run: MakeRun) -> None:
    long, short = make_run("long"), make_run("short", count=6)
    assert "has 4 records after its warm-up, needed 8" in refusal(long, short)
    assert len(read_runs([str(long), f"b={short}", f"b={make_run('more', count=6)}"])) == 2


def test_a_label_that_mixes_configurations_is_refused_by_the_key(make_run: MakeRun) -> None:
    mixed = make_run("mixed", changes={"env": {"id": "Other-v0", "kwargs": {}}})
    problem = refusal(f"a={make_run('one')}", f"a={mixed}", f"b={make_run('two')}")
    assert "the label 'a' mixes" in problem
    assert "env.id Toy-v0, Other-v0" in problem


def test_where_a_run_lies_and_what_it_writes_may_differ_between_seeds(make_run: MakeRun) -> None:
    place = SECOND_SEED | {"log": {"every_s": 9.0}, "resume": "must", "checkpoint": {"every": 7, "keep": 3}}
    first, second = read_runs([f"a={make_run('one')}", f"a={make_run('other', changes=place)}", f"b={make_run('two')}"])
    assert (first.label, len(first.runs), first.has_seeds) == ("a", 2, True)
    assert (second.label, len(second.runs), second.has_seeds) == ("b", 1, False)


def test_other_tasks_are_compared_with_a_warning_and_other_settings_are_listed(make_run: MakeRun) -> None:
    changes = {"algo": {"name": "td3", "gamma": 0.9}, "seed": 5}
    lines = warnings(read_runs([str(make_run("one")), str(make_run("two", changes=changes))]))
    assert "warning: not the same task or algorithm (one, two): algo.name sac, td3" in lines
    assert "configuration (one, two): algo.gamma 0.99, 0.9" in lines


def test_threads_and_libraries_that_are_configured_or_ran_are_listed(make_run: MakeRun) -> None:
    one = make_run("one", changes={"threads": {"learner": "auto"}})
    two = make_run("two", changes={"threads": {"learner": 1}})
    for path, threads, products in ((one, 2, "onednn"), (two, 1, "blas")):
        ran = {"threads": {"learner": threads, "collector": 1}, "products": products}
        (path / "summary.json").write_text(json.dumps(ran))
    lines = warnings(read_runs([str(one), str(two)]))
    assert lines == [
        "configuration (one, two): threads.learner auto, 1",
        "what ran (one, two): threads.learner 2, 1; products onednn, blas",
    ]

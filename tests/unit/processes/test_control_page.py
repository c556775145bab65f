from __future__ import annotations

import pytest

from offpolicy.processes.control_page import CollectorWord, ControlPage, EvaluatorWord, HostWord, RankWord, Stop


def make_page(buffer: bytearray | None = None) -> ControlPage:
    return ControlPage(memoryview(buffer or bytearray(ControlPage.nbytes(2, 3))), num_ranks=2, num_collectors=3)


def test_all_words_are_separate() -> None:
    page = make_page()
    sections = [(page.host, HostWord), (page.evaluator, EvaluatorWord)]
    sections += [(words, RankWord) for words in page.ranks] + [(words, CollectorWord) for words in page.collectors]
    places = [(words, word) for words, kind in sections for word in kind]
    for number, (words, word) in enumerate(places, start=1):
        words.set(word, number)
    assert [words.get(word) for words, word in places] == list(range(1, len(places) + 1))


def test_two_views_of_one_buffer_show_the_same_words() -> None:
    buffer = bytearray(ControlPage.nbytes(2, 3))
    writer, reader = make_page(buffer), make_page(buffer)
    assert writer.ranks[1].bump(RankWord.PROGRESS) == 1
    assert writer.ranks[1].bump(RankWord.PROGRESS) == 2
    assert reader.ranks[1].get(RankWord.PROGRESS) == 2
    writer.collectors[2].set(CollectorWord.ENV_STEPS, 2**63)
    assert reader.collectors[2].get(CollectorWord.ENV_STEPS) == 2**63


def test_sections_of_processes_are_cache_lines_apart() -> None:
    buffer = bytearray(ControlPage.nbytes(2, 3))
    make_page(buffer).ranks[1].set(RankWord.PROGRESS, 1)
    assert [place // 64 for place, byte in enumerate(buffer) if byte] == [6]  # two lines each
    assert len(buffer) == 2 * 64 * 7


def test_env_steps_are_those_of_all_collectors() -> None:
    page = make_page()
    for index, steps in enumerate((1, 20, 300)):
        page.collectors[index].set(CollectorWord.ENV_STEPS, steps)
    assert page.env_steps == 321


@pytest.mark.parametrize(("level", "is_stopping"), [(Stop.RUN, False), (Stop.FINISH, True), (Stop.EXIT, True)])
def test_every_level_but_run_is_stopping(level: Stop, is_stopping: bool) -> None:
    page = make_page()
    page.host.set(HostWord.STOP, level)
    assert page.is_stopping is is_stopping


@pytest.mark.parametrize(("role", "index"), [("learner", 1), ("collector", 2), ("evaluator", 0)])
def test_progress_and_waiting_are_found_by_role_and_index(role: str, index: int) -> None:
    page = make_page()
    words, kind = {
        "learner": (page.ranks[1], RankWord),
        "collector": (page.collectors[2], CollectorWord),
        "evaluator": (page.evaluator, EvaluatorWord),
    }[role]
    assert (page.progress(role, index), page.is_waiting(role, index)) == (0, False)
    words.set(kind.PROGRESS, 5)
    words.set(kind.IS_WAITING, 1)
    assert (page.progress(role, index), page.is_waiting(role, index)) == (5, True)


def test_a_collector_is_asked_for_the_snapshots_it_owes_and_all_for_their_exit() -> None:
    page = make_page()
    assert not page.is_asked("collector", 1)
    page.leader.set(RankWord.SNAPSHOT_REQUEST, 2)
    page.collectors[1].set(CollectorWord.SNAPSHOT_DONE, 2)
    assert [page.is_asked("collector", index) for index in range(3)] == [True, False, True]
    assert not page.is_asked("learner", 0)
    page.host.set(HostWord.STOP, Stop.EXIT)
    assert page.is_asked("collector", 1)
    assert page.is_asked("evaluator", 0)


@pytest.mark.parametrize(
    ("done", "released", "env_steps", "level", "may_go"),
    [
        (1, 1, 9, Stop.RUN, True),
        (1, 1, 10, Stop.RUN, False),  # all that was granted
        (1, 0, 9, Stop.RUN, False),  # its rows are still being saved
        (0, 0, 9, Stop.RUN, True),  # it owes a snapshot
        (1, 1, 9, Stop.FINISH, False),
        (1, 1, 10, Stop.EXIT, True),
    ],
)
def test_a_collector_may_go_where_its_gate_lets_it(
    done: int, released: int, env_steps: int, level: Stop, may_go: bool
) -> None:
    page = make_page()
    page.leader.set(RankWord.GRANTED, 10)
    page.leader.set(RankWord.SNAPSHOT_REQUEST, 1)
    page.leader.set(RankWord.SNAPSHOT_RELEASE, released)
    page.collectors[1].set(CollectorWord.SNAPSHOT_DONE, done)
    page.collectors[1].set(CollectorWord.ENV_STEPS, env_steps)
    page.host.set(HostWord.STOP, level)
    assert page.may_go("collector", 1) is may_go
    assert not page.may_go("learner", 1)

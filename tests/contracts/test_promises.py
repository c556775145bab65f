"""Every promise of the design has its tests, and the table of them is up to date."""

from __future__ import annotations

from tests import promises

# What only a quiet machine or hours of training can show.
NIGHTLY_ALONE = {"published-returns", "default-trains", "measuring-is-cheap"}


def test_every_promise_has_a_test_and_every_marker_names_a_promise() -> None:
    assert promises.marked().keys() == promises.promise_names()


def test_every_promise_has_a_test_that_a_change_must_pass() -> None:
    nightly = {
        name for name, tests in promises.marked().items() if all(test.endswith(promises.NIGHTLY) for test in tests)
    }
    assert nightly <= NIGHTLY_ALONE


def test_the_table_is_made_of_the_markers() -> None:
    page = (promises.TESTS / "README.md").read_text()
    assert page == promises.page(), "run: python -m tests.promises > tests/README.md"

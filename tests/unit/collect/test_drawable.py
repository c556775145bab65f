"""An environment that cannot be drawn is refused before a run begins."""

from __future__ import annotations

import pytest

from offpolicy.collect import drawable
from offpolicy.collect.drawable import check_video_of
from offpolicy.config.sections import EnvConfig
from offpolicy.errors import ConfigError


@pytest.mark.mp
def test_an_environment_that_draws_nothing_is_refused_in_another_process() -> None:
    with pytest.raises(ConfigError, match=r"has the render modes \[\], needed rgb_array"):
        check_video_of(EnvConfig(id="offpolicy.envs.toy:PointMass-v0"))


def test_a_renderer_that_crashes_is_refused_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise drawable.ChildError("was killed by SIGSEGV")

    monkeypatch.setattr(drawable, "call_in_child", crash)
    with pytest.raises(ConfigError, match=r"eval\.video: got true, allowed false: A-v0 cannot be drawn here: was kill"):
        check_video_of(EnvConfig(id="A-v0"))

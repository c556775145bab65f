"""Values that change during a run, as a function of its env steps alone: nothing to save, the same on every rank.

A step size or a noise is a number, or a `Ramp` from one number to another. Env steps are those of the whole run, over
all collectors and hosts, so a resumed run continues where it was and another number of collectors changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from offpolicy.config.parsing import Limits, allowed_text, option, within

SHAPES = ("linear", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """`start` until `begin`, `end` from `begin + over` on, and between them a line or half a cosine."""

    start: float = option(0.0, "value before and at the beginning", is_required=True)
    end: float = option(0.0, "value at the end and ever after", is_required=True)
    over: int = option(1, "env steps from the beginning to the end", is_required=True, ge=1)
    begin: int | None = option(None, "env step of the beginning; null: the end of warm-up", ge=0)
    shape: str = option("linear", "linear, or cosine: slow at both ends", choices=SHAPES)

    def at(self, env_steps: int, warmup: int = 0) -> float:
        """Returns the value at an env step of the run; `warmup` is where the ramp begins by default."""
        begin = warmup if self.begin is None else self.begin
        return ramp(self.start, self.end, (env_steps - begin) / self.over, self.shape)

    def problems(self, key: str, limits: Limits) -> list[str]:
        """Returns its problems as the value of an option with `limits`; one end may be at an open bound, not both."""
        closed = {{"gt": "ge", "lt": "le"}.get(name, name): bound for name, bound in limits.items()}
        ends = {"start": self.start, "end": self.end}
        bad = {name: value for name, value in ends.items() if not within(value, closed)}
        if not bad and not any(within(value, limits) for value in ends.values()):
            bounds = allowed_text(float, limits)
            return [f"{key}: got {self.start:g} at both ends, allowed {bounds} at one of them at least"]
        return [f"{key}.{name}: got {value:g}, allowed {allowed_text(float, closed)}" for name, value in bad.items()]


Scheduled = float | Ramp


def ramp(start: float, end: float, fraction: float, shape: str = "linear") -> float:
    """Returns the value at `fraction` of the way: exact at both ends, never beyond them, monotone in `fraction`."""
    if fraction <= 0.0:
        return start
    if fraction >= 1.0:
        return end
    share = fraction if shape == "linear" else 0.5 * (1.0 - math.cos(math.pi * fraction))
    low, high = min(start, end), max(start, end)
    return min(max(start + (end - start) * share, low), high)


def value_at(value: Scheduled, env_steps: int, warmup: int) -> float:
    """Returns the number in force at an env step of the run, whose warm-up ends at env step `warmup`."""
    return value.at(env_steps, warmup) if isinstance(value, Ramp) else value

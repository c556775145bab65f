"""What the device of rank 0 did in a window: a lane beside the phases, never added to them."""

from __future__ import annotations

from offpolicy.logger.metrics import device_key
from offpolicy.timing.phases import DeviceSpan
from offpolicy.timing.rates import NS_PER_MS, learner_elapsed
from offpolicy.types import DeviceTotals, Snapshot

NOTHING = DeviceTotals(0, 0, 0, 0, iterations=0, launch_bound=0, dropped=0)


def device_keys(previous: Snapshot | None, current: Snapshot) -> dict[str, float]:
    """The `device/` keys; none where there is no lane, or no iteration in the window.

    A device is busy from the first to the last thing of a span that it was given, gaps included. Hidden copies run
    behind an update, which is busy already.
    """
    window, after = learner_elapsed(previous, current), current.learners[0].device if current.learners else None
    if window is None or after is None or window.iterations == 0 or window.wall_ns <= 0:
        return {}
    before = (previous.learners[0].device if previous is not None and previous.learners else None) or NOTHING
    done = DeviceTotals(*(now - then for now, then in zip(after, before, strict=True)))
    spans_ns = {
        DeviceSpan.TRAIN: done.train_ns,
        DeviceSpan.H2D: done.h2d_ns,
        DeviceSpan.H2D_HIDDEN: done.h2d_hidden_ns,
        DeviceSpan.INFERENCE: done.inference_ns,
    }
    record: dict[str, float] = {device_key(span): ns / window.iterations / NS_PER_MS for span, ns in spans_ns.items()}
    record["device/busy_share"] = (sum(spans_ns.values()) - done.h2d_hidden_ns) / window.wall_ns
    if done.iterations > 0:
        record["device/launch_bound"] = done.launch_bound / done.iterations
    return record | {"device/dropped": done.dropped}

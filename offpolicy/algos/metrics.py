"""Sums of training metrics that stay on the device until they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from offpolicy.types import MetricTotals


class MetricSums:
    """Cumulative sums per metric, in float64, with the number of additions.

    Metrics come in groups that are measured together, such as those of a critic step and of a (delayed) actor step.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]], device: torch.device) -> None:
        self.names = tuple(name for names in groups.values() for name in names)
        self.sums = torch.zeros(len(self.names), dtype=torch.float64, device=device)
        self.counts = dict.fromkeys(groups, 0)
        self._sizes = {group: len(names) for group, names in groups.items()}
        self._group_sums = dict(zip(groups, torch.split(self.sums, list(self._sizes.values())), strict=True))

    @torch.no_grad()
    def add(self, group: str, values: Sequence[Tensor]) -> None:
        """Adds one scalar per name of the group, in its order; no host synchronisation."""
        self._group_sums[group].add_(torch.stack(tuple(values)))
        self.counts[group] += 1

    def totals(self) -> MetricTotals:
        """Returns the sums and counts so far, with one device-to-host copy."""
        counts = np.repeat(np.array(list(self.counts.values()), dtype=np.float64), list(self._sizes.values()))
        return MetricTotals(self.names, self.sums.cpu().numpy().copy(), counts)

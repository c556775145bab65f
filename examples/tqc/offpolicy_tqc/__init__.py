"""TQC, truncated quantile critics (arXiv:2005.04269): the name, the options and the curves. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from offpolicy.config.parsing import option
from offpolicy.config.sections import REPLAY_CURVES, SAC, AlgoConfig, AlgorithmInfo, PolicyKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TqcConfig(AlgoConfig):
    """SAC's options, and two more."""

    name: str = option("tqc", "algorithm", choices=("tqc",))
    num_quantiles: int = option(25, "quantiles of each of the two critics", ge=8, le=512)
    dropped: int = option(2, "largest quantiles per critic that the target leaves out", ge=0, le=7)


TQC = AlgorithmInfo(
    *("tqc", PolicyKind.SQUASHED_GAUSSIAN, REPLAY_CURVES),
    options=TqcConfig, update_rule="offpolicy_tqc.update:Tqc", like=SAC,
)  # fmt: skip

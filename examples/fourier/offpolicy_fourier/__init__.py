"""Learned Fourier features (arXiv:2112.03257), and a pendulum under little gravity. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from offpolicy.config.extensions import EnvPreset, NetworkConfig, NetworkInfo
from offpolicy.config.parsing import option


@dataclass(frozen=True, slots=True, kw_only=True)
class FourierConfig(NetworkConfig):
    """The encoder's options: `algo.network.num_features` and `algo.network.scale`."""

    num_features: int = option(64, "features, half of them sines", ge=2, le=65536)
    scale: float = option(0.1, "std of the initial frequencies", gt=0.0)


FOURIER = NetworkInfo("offpolicy_fourier.encoder:FourierEncoder", FourierConfig)
LIGHT_PENDULUM = EnvPreset({"env": {"id": "Pendulum-v1", "kwargs": {"g": 1.0}}, "total_timesteps": 5000})

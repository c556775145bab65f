"""The collector of a batch of tensors, on the learner's device: the same loop, whose numbers the host reads late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.collect.collector import STANDING, Collector
from offpolicy.collect.device_writer import DeviceWriter
from offpolicy.collect.policy import CollectorPolicy, random_actions
from offpolicy.types import PolicyOutput

NOTED_NUMBERS = 1 << 18  # environments times vector steps whose episodes the device keeps between two reads


class DevicePolicy(CollectorPolicy):
    """The learner's networks, which act on tensors of their device."""

    def act(self, obs: Any, env_steps: int) -> PolicyOutput:
        """Returns exploratory actions [N, A] for obs [N, O], tensors. NaN of the networks is found by the learner."""
        if self.is_random(env_steps):
            drawn = torch.from_numpy(random_actions(self._spec, self.warmup_rng, len(obs))).to(obs.device)
        else:
            drawn = self.explore(obs, env_steps)[0]
        action: Any = drawn
        return PolicyOutput(action, None, self.version)


@dataclass(slots=True)
class DeviceCollector(Collector):
    """Steps tensors. Episodes and bad rows stay on the device until a report, or until many steps are noted."""

    noted: list[Tensor] = field(default_factory=list)  # of each vector step [6, N]
    noted_steps: list[int] = field(default_factory=list)  # env steps of the run then
    noted_log: list[Tensor] = field(default_factory=list)  # of each vector step [K]: what `log_names` name, in turn
    log_names: list[str] = field(default_factory=list)

    def record_episodes(self, outcome: Any) -> None:  # Any: tensors in place of arrays
        """Adds a vector step to the running episodes, and notes those that ended in it."""
        done = outcome.terminated | outcome.truncated
        self.ep_return = self.ep_return + outcome.reward
        self.ep_length = self.ep_length + 1
        columns = (done, self.ep_return, self.ep_length, outcome.terminated, outcome.truncated, outcome.success)
        self.noted.append(torch.stack([column.double() for column in columns]))
        self.noted_steps.append(self.run_steps())
        on_device = {name: value for name, value in outcome.log.items() if isinstance(value, Tensor)}
        self.add_log((name, value) for name, value in outcome.log.items() if name not in on_device)
        if on_device:
            self.log_names += on_device
            self.noted_log.append(torch.stack([value.double() for value in on_device.values()]))
        self.ep_return, self.ep_length = torch.where(done, 0.0, self.ep_return), torch.where(done, 0, self.ep_length)
        if len(self.noted) * self.env.num_envs >= NOTED_NUMBERS:
            self.read_device()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns where environments and episodes stand, for a snapshot."""
        self.read_device()
        return {name: getattr(self, name).cpu().numpy() for name in STANDING}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Continues from what `arrays` returned, or from tensors."""
        for name in STANDING:
            setattr(self, name, torch.asarray(arrays[name], device=self.policy.policy_rng.device, copy=True))

    def report(self) -> None:
        """Reads the episodes and the bad rows from the device, and publishes the cumulative report."""
        self.read_device()
        super(DeviceCollector, self).report()

    def read_device(self) -> None:
        """Publishes the episodes that ended since the last time, and resets the environments of bad rows.

        Raises `NumericsError` beyond `env.max_bad_rows`.
        """
        if not self.noted:
            return
        noted, steps = torch.stack(self.noted).cpu().numpy(), np.array(self.noted_steps)
        self.noted.clear()
        self.noted_steps.clear()
        if self.noted_log:
            self.add_log(zip(self.log_names, torch.cat(self.noted_log).tolist(), strict=True))
            self.noted_log.clear()
            self.log_names.clear()
        step, env = np.nonzero(noted[:, 0] * np.isfinite(noted[:, 1]))
        if len(step):
            rows = noted[step, 1:, env]  # return, length, terminated, truncated, success
            self.episodes.append(np.column_stack([steps[step], self.number * self.env.num_envs + env, rows]))
        assert isinstance(self.writer, DeviceWriter)
        bad = self.writer.is_bad.cpu().numpy()
        if bad.any():
            envs: list[int] = np.flatnonzero(bad).tolist()
            text = f"NaN or Inf in a transition of environment {envs[0]} before env step {self.env_steps}"
            begun, where = self.reset_bad(envs, text)
            is_new = torch.from_numpy(where).to(self.obs.device)
            self.obs = torch.where(is_new[:, None], begun, self.obs)
            self.ep_return, self.ep_length = (torch.where(is_new, 0, each) for each in (self.ep_return, self.ep_length))
            self.writer.is_bad.zero_()

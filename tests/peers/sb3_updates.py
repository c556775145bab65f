"""Updates of SAC or TD3 by Stable-Baselines3's own `train`, with given batches and noise. Run by SB3's interpreter.

Usage: sb3_updates.py CASE IN OUT, with CASE as JSON (`Case` of test_sb3.py), IN an .npz of the batches and the noise
[updates, B, ...], OUT an .npz that becomes the parameters after 0 and each of `after` updates: `<updates>/<name>`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC, TD3
from stable_baselines3.common import distributions
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch.nn import functional


class Sizes(gymnasium.Env):
    """Declares observations [O] and actions [A]."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)


class Noise:
    """What SB3 draws, in the order in which it does, in place of torch's own draws."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.queue: list[Any] = []
        self._shape, self._normal = shape, torch.Tensor.normal_
        torch.distributions.Normal.rsample = lambda normal, shape=(): normal.loc + normal.scale * self.queue.pop(0)
        torch.Tensor.normal_ = lambda tensor, mean=0.0, std=1.0, **options: self._filled(tensor, mean, std, options)

    def _filled(self, tensor: Any, mean: float, std: float, options: dict[str, Any]) -> Any:
        """In place of `Tensor.normal_`."""
        if not self.queue or tensor.shape != self._shape:
            return self._normal(tensor, mean, std, **options)
        return tensor.copy_(mean + std * self.queue.pop(0))


def exact_log_prob(self: Any, actions: Any, gaussian_actions: Any = None) -> Any:
    """SB3's density with log(1 - tanh(u)^2) written 2 (log 2 - u - softplus(-2u)), without a floor."""
    log_prob = distributions.DiagGaussianDistribution.log_prob(self, gaussian_actions)
    return log_prob - (2.0 * (math.log(2.0) - gaussian_actions - functional.softplus(-2.0 * gaussian_actions))).sum(1)


def make_model(case: dict[str, Any], sizes: tuple[int, int], rows: int) -> Any:  # Any: of a package not installed here
    options = {"learning_rate": case["lr"], "batch_size": rows, "policy_kwargs": {"net_arch": [256, 256]}}
    if case["algo"] == "sac":
        options["ent_coef"] = f"auto_{case['alpha']}" if case["tunes_alpha"] else case["alpha"]
    model = {"sac": SAC, "td3": TD3}[case["algo"]]("MlpPolicy", Sizes(*sizes), device="cpu", seed=1, **options)
    model.set_logger(configure(None, []))
    if case["is_alike"]:
        distributions.SquashedDiagGaussianDistribution.log_prob = exact_log_prob
        for group in model.critic.optimizer.param_groups:
            group["eps"] *= 0.5  # with half of the loss the same step
    if case["mean"]:
        torch.nn.init.constant_(model.actor.mu.bias, case["mean"])
    return model


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """The parameters by the names that they have in a `LearnerState`."""
    actors = {"policy.actor": model.actor} | ({"target_actor": model.actor_target} if isinstance(model, TD3) else {})
    for name, actor in actors.items():
        if isinstance(model, TD3):
            yield from named(f"{name}.body", actor.mu)
        else:
            yield from named(f"{name}.body", actor.latent_pi)
            heads = (actor.mu, actor.log_std)
            yield f"{name}.body.4.weight", torch.cat([head.weight for head in heads])
            yield f"{name}.body.4.bias", torch.cat([head.bias for head in heads])
    for name, critic in {"critic": model.critic, "target_critic": model.critic_target}.items():
        for twin, net in zip(("first", "second"), critic.q_networks, strict=True):
            yield from named(f"{name}.{twin}", net)
    if getattr(model, "ent_coef_optimizer", None) is not None:
        yield "log_alpha", model.log_ent_coef[0]


def named(prefix: str, layers: Any) -> Iterator[tuple[str, Any]]:
    return ((f"{prefix}.{name}", parameter) for name, parameter in layers.named_parameters())


def main(case: dict[str, Any], given: dict[str, Any], out: str) -> None:
    torch.set_num_threads(1)
    _, rows, action_dim = given["action"].shape
    model = make_model(case, (given["obs"].shape[2], action_dim), rows)
    noise, after = Noise((rows, action_dim)), {}
    for update in range(max(case["after"]) + 1):
        if update in (0, *case["after"]):
            after |= {f"{update}/{name}": p.detach().numpy().copy() for name, p in named_parameters(model)}
        if update < max(case["after"]):
            batch = {name: torch.from_numpy(values[update]) for name, values in given.items()}
            # SAC: ours draws the next action first, SB3 that of the actor's step.
            noise.queue[:] = (
                [batch["own_noise"], batch["next_noise"]] if case["algo"] == "sac" else [batch["next_noise"]]
            )
            columns = (batch["terminated"][:, None], batch["reward"][:, None])
            others = {"discounts": None} if "discounts" in ReplayBufferSamples._fields else {}
            samples = ReplayBufferSamples(batch["obs"], batch["action"], batch["next_obs"], *columns, **others)
            model.replay_buffer.sample = lambda *_, samples=samples, **__: samples
            model.train(gradient_steps=1, batch_size=rows)
            assert not noise.queue, "SB3 has not drawn what was laid out for it"
    np.savez(out, **after)


if __name__ == "__main__":
    with np.load(sys.argv[2]) as arrays:
        main(json.loads(sys.argv[1]), dict(arrays), sys.argv[3])

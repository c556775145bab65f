"""The contract of a batch: environments that are one object and step together, such as a simulator of thousands.

`env.batch=package.module:factory` names it: the factory is called with `num_envs` and `env.kwargs`. The adapters in
`offpolicy.envs.batches` are written against the same contract. Everything inside is by environment, [N, ...].
`offpolicy.envs.check_batch.check_batch(make)` tries a batch of one's own, in a test.

What happens where an episode ends is the one thing in which simulators differ, and the one that decides whether what is
learnt there is right. A batch says so by `autoreset`, in Gymnasium's words:

- `DISABLED`: a step returns the final observation, and `reset` begins the next episode where it is asked to.
- `SAME_STEP`: a step returns the first observation of the next episode, and the final one as `final_obs`. A batch
  that has none has `has_final_obs=False`: it is refused, unless `env.final_obs=missing` accepts the bias. An episode
  that was truncated is then bootstrapped from the first observation of the next one.
- `NEXT_STEP`: a step returns the final observation, and the next step of that environment begins an episode: its action
  is ignored, its reward is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium import Space
from gymnasium.vector import AutoresetMode

Array = Any  # of NumPy where the batch has no device, else a torch tensor on it
Obs = Any  # as the observation space says: an array [N, ...], or a dict of them by group


class BatchStep(NamedTuple):
    """What a step returns. The batch may reuse all of it in its next step: the caller copies what it keeps."""

    obs: Obs  # to act on next; the first of the next episode where SAME_STEP has ended one
    reward: Array  # [N] numbers
    terminated: Array  # [N] bool: the task has ended
    truncated: Array  # [N] bool: the time is over
    final_obs: Obs | None = None  # of SAME_STEP: read where an episode has ended. None: none has
    log: Mapping[str, Any] = {}  # numbers, which become metrics `env/<name>`; [N]: success, `env.measure`


class Batch(Protocol):
    """`num_envs` environments that step together. What it raises ends the run, with its traceback."""

    num_envs: int
    device: str | None  # of its tensors, such as cuda:0; None: it takes and returns NumPy arrays
    observation_space: Space[Any]  # of one environment: a Box, or a Dict of groups (such as actor and critic)
    action_space: Space[Any]  # of one: a Box, infinite where env.action_bounds is to say it, or a discrete one
    max_episode_steps: int | None  # after which episodes are truncated; None: unknown
    autoreset: AutoresetMode
    has_final_obs: bool  # the final observations are the true ones; always so but with SAME_STEP
    takes_ids: bool  # `reset` can start some, also while the others go on; always so with DISABLED

    def reset(self, ids: Array | None = None, seeds: Sequence[int] | None = None) -> Obs:
        """Starts an episode in the environments `ids` [n], or in all. Returns the observations of all.

        Those of the others are as they were. `seeds` has one for each that starts; a simulator with one generator takes
        the first. None: its random numbers go on.
        """
        ...

    def step(self, actions: Array) -> BatchStep:
        """Steps all. actions: [N, ...] as the action space says, within its bounds."""
        ...

    def close(self) -> None:
        """Frees what the batch holds."""
        ...

"""The evaluations of a run, with all that follows from one, for whichever process makes them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from offpolicy.algos.registry import make_policy
from offpolicy.checkpoint import Array, BestStore
from offpolicy.collect.evaluation import Episode, EpisodeCallbacks, deterministic_actor, run_episodes
from offpolicy.collect.evaluations import EVALUATIONS_FILE, read_results, stop_reason, with_result
from offpolicy.collect.policy import BadEpisodeError
from offpolicy.collect.video import EvalVideo
from offpolicy.config.schema import RunConfig
from offpolicy.errors import SaveError
from offpolicy.files import JsonlFile
from offpolicy.nets.policy import flat_size, load_flat
from offpolicy.timing.phases import EvaluatorPhase
from offpolicy.types import EvalResult, Float32, SpaceSpec


class RunEvaluation:
    """Evaluates, sends episodes and result, records it, keeps the best policy, asks for an early stop, and films."""

    def __init__(
        self,
        cfg: RunConfig,
        spec: SpaceSpec,
        run_dir: Path,
        kept_step: int,
        *,
        send: Callable[..., None],
        callbacks: EpisodeCallbacks,
    ) -> None:
        """`kept_step`: env steps up to which evaluations stay recorded: later ones are made again.

        `send(kind, **fields)` goes to the supervisor.
        """
        self._cfg, self._send = cfg, send
        self._callbacks = callbacks
        self._policy = make_policy(cfg.algo, spec).eval()
        self.policy_size = flat_size(self._policy)  # numbers of the flat policy
        self.episodes = 0  # of all evaluations
        self._path, self._kept_step = run_dir / EVALUATIONS_FILE, kept_step
        self._file: JsonlFile | None = None
        self._warned = set[str]()  # of a file that cannot be written, until it can be again
        self._write([])
        self._results, self._best = read_results(run_dir), BestStore(run_dir)
        self._best_reward = self._best.mean_reward()
        self.video = EvalVideo(cfg, spec, run_dir, self._warn)
        self._set_stop()

    def _warn(self, text: str) -> None:
        self._send("warning", text=text)

    def _set_stop(self) -> None:
        """Sets `stops_early`: true if the results so far end the run (`stop.*`); the supervisor is sent the reason."""
        reason = stop_reason(self._results, self._cfg.stop)
        self.stops_early = reason is not None
        if reason is not None:
            self._send("early_stop", text=reason)

    def evaluate(self, flat: Float32, env_steps: int, policy_version: int) -> EvalResult | None:
        """Evaluates the flat policy [P], and begins its video; None if stopped. Raises `EnvFailure`, `NumericsError`.

        Where the run skips bad transitions, an evaluation in which an environment gave NaN or Inf has the mean NaN.
        """
        cfg = self._cfg
        with self._callbacks.ledger.phase(EvaluatorPhase.WEIGHT_APPLY):
            load_flat(self._policy, flat)

        def send_episode(episode: Episode) -> None:
            record = {
                "env_steps": env_steps,
                "policy_version": policy_version,
                "episode": episode.index,
                "ep_return": episode.ep_return,
                "ep_length": episode.length,
                "terminated": episode.terminated,
                "truncated": episode.truncated,
                "success": episode.success,
                "measure": episode.measure,
            }
            self._send("eval_episode", **{name: value for name, value in record.items() if math.isfinite(value)})

        act, callbacks = deterministic_actor(self._policy), replace(self._callbacks, on_end=send_episode)
        try:
            episodes, num_envs = cfg.eval.episodes, cfg.eval.num_envs
            found = run_episodes(act, cfg.env, episodes=episodes, seed=cfg.seed, num_envs=num_envs, callbacks=callbacks)
        except BadEpisodeError as error:
            if cfg.max_bad_rows == 0:
                raise
            self._warn(f"{error}; env.max_bad_rows={cfg.max_bad_rows} lets the run go on without a result")
            result = EvalResult(env_steps, math.nan, math.nan, math.nan, 0, policy_version)
        else:
            if len(found.ep_return) < cfg.eval.episodes:
                return None
            means = float(found.ep_return.mean()), float(found.ep_return.std()), float(found.length.mean())
            result = EvalResult(env_steps, *means, cfg.eval.episodes, policy_version)
        self.episodes += result.episodes
        self._send("eval", **result._asdict())
        # As a checkpoint's learner names them: views.
        tensors = {f"policy.{name}": tensor.numpy() for name, tensor in self._policy.state_dict().items()}
        self.record(result, tensors)
        self.video.film(tensors, env_steps)
        return result

    def record(self, result: EvalResult, tensors: Mapping[str, Array]) -> None:
        """Records the evaluation of the policy with these tensors. A disk that refuses costs a warning, not the run.

        One whose mean return is not finite counts for nothing: the file cannot hold it, so a resume would not know it.
        """
        if not math.isfinite(result.mean_reward):
            return
        self._results = with_result(self._results, result)
        self._write([result._asdict()])
        if self._best_reward is None or result.mean_reward > self._best_reward:
            try:
                self._best.save(tensors, result)
                self._best_reward = result.mean_reward
                self._warned.discard("best")
            except SaveError as error:
                self._warn_once(
                    "best", f"the best policy so far, of env step {result.env_steps:,}, is not saved: {error}"
                )
        self._set_stop()

    def _write(self, records: Sequence[Mapping[str, float]]) -> None:
        """Appends records to the file, which is opened first: that moves those that are made again."""
        try:
            self._file = self._file or JsonlFile(self._path, self._kept_step)
            for record in records:
                self._file.append(record)
        except OSError as error:
            name = self._path.name
            self._warn_once(name, f"{name} cannot be written: {error}; its lines are dropped while that is so")

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warn(text)
        self._warned.add(what)

    def close(self) -> None:
        """Ends the video that is being made."""
        with contextlib.closing(self.video):
            if self._file is not None:
                self._file.close()

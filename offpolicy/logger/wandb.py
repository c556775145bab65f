"""Weights & Biases: the same keys over env steps. Only this module imports `wandb`, and only on demand."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offpolicy import fault
from offpolicy.errors import ConfigError
from offpolicy.logger.console import shown_path
from offpolicy.logger.record import Record
from offpolicy.logger.sinks import NewEvaluations, Sink, Summary
from offpolicy.processes.child import call_within

INIT_TIMEOUT_S = 30
FINISH_S = 30.0  # for what is left to upload at the end; without a network W&B would wait for ever


class WandbSink(Sink):
    """One W&B run per run directory: its id is kept in `wandb_id`, and a resumed run continues it.

    Offline each start is another W&B run, in a group of that id. W&B does not resume what it has not uploaded:
    of two starts with one id, `wandb sync` keeps the curves of the last.

    Raises whatever `wandb` raises, and `ConfigError` when online mode has no API key: it does not prompt.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Mapping[str, Any],  # Any: nested configuration values
        project: str,
        mode: str,  # offline or online
        warn: Callable[[str], None],
        *,
        last_eval_step: int | None = None,
    ) -> None:
        import wandb  # optional back-end, 0.4 s to import

        if is_online := mode == "online":
            require_login()
        id_path = run_dir / "wandb_id"
        run_id = id_path.read_text().strip() if id_path.is_file() else ""
        if not run_id:
            run_id = secrets.token_hex(4)
            fault.hit("wandb.write")
            id_path.write_text(run_id + "\n")
        own_id = run_id if is_online else f"{run_id}-{secrets.token_hex(4)}"
        self._warn, self._files = warn, f"{shown_path(run_dir / 'wandb')}/*-{own_id}"
        self._evaluations = NewEvaluations(last_eval_step)
        self._exit_code = 0
        self._run: Any = wandb.init(  # Any: wandb is not typed for us
            project=project,
            id=own_id,
            group=None if is_online else run_id,
            resume="allow" if is_online else None,
            mode="online" if is_online else "offline",
            dir=str(run_dir),
            config=dict(config),
            settings=wandb.Settings(
                init_timeout=INIT_TIMEOUT_S,
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
            ),  # fmt: skip
        )
        # An evaluation arrives after records of later steps: its x is the step of the policy it measured.
        for keys, axis in (("*", "env_steps"), ("eval/*", "eval/env_steps")):
            self._run.define_metric(axis)
            self._run.define_metric(keys, step_metric=axis)

    def write(self, record: Record) -> None:
        """Logs the record; an evaluation only when it is new."""
        rest, evaluation = self._evaluations.take(record)
        self._run.log(rest | evaluation)

    def text(self, tag: str, content: str, env_steps: int) -> None:
        """Writes the text into the run's summary."""
        self._run.summary[tag] = content

    def finish(self, summary: Summary) -> None:
        """Writes the final numbers into the run's summary."""
        self._exit_code = summary["exit_code"]
        final = {key: summary[key] for key in ("status", "exit_code", "reason", "eval", "rates", "bottleneck")}
        self._run.summary.update({"final": final})

    def close(self) -> None:
        """Finishes the W&B run; after `FINISH_S` leaves it to its thread, which ends with the process."""
        try:
            call_within(FINISH_S, lambda: self._run.finish(exit_code=self._exit_code))
        except TimeoutError:
            left = f"`wandb sync {self._files}` uploads the rest"
            self._warn(f"warning: W&B has not taken everything within {FINISH_S:g} s; {left}")


def require_login() -> None:
    """Raises `ConfigError` if `log.wandb=online` has no API key."""
    import wandb  # optional back-end

    if not wandb.login(prompt=False, verify=False):
        raise ConfigError(
            "log.wandb: got online, but no W&B API key is configured; allowed: log.wandb=offline, or log in first"
            " (`wandb login`, or the environment variable WANDB_API_KEY)"
        )

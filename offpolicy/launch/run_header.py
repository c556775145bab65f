"""The header of a run: the decisions made for the user, printed and recorded before the processes start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from offpolicy.checkpoint import SharedState
from offpolicy.checkpoint.content import PLUGINS_KEY
from offpolicy.collect.evaluations import best_of, read_results
from offpolicy.config.overrides import as_override
from offpolicy.config.parsing import flatten
from offpolicy.config.run_files import env_differences, read_config
from offpolicy.config.schema import RunConfig, plugins_of, unread_options
from offpolicy.envs.make import MAX_EPISODE_STEPS
from offpolicy.envs.vectorization import is_batch, is_batched_task, is_own, slower_because
from offpolicy.launch.resources import env_step_factors
from offpolicy.launch.run_dir import RunDir
from offpolicy.logger.logger import OffPolicyLogger, open_logger
from offpolicy.logger.provenance import Provenance
from offpolicy.logger.record import RunHeader
from offpolicy.machine import has_gpu
from offpolicy.output import counted
from offpolicy.replay.rate_limiter import first_learning_step
from offpolicy.timing.clock import unix_s
from offpolicy.training.run_memory import RAY_STORE_BYTES, row_layout, transport_nbytes
from offpolicy.training.worker import WorkerSpec


def open_run_logger(job: WorkerSpec, run: RunDir, provenance: Provenance) -> OffPolicyLogger:
    """Returns the logger of a run, open on its directory."""
    cfg = job.cfg
    kept = [result for result in read_results(run.path) if result.env_steps <= job.kept_eval_step]
    best, last_eval = (best_of(kept), kept[-1]) if kept else (None, None)
    header = RunHeader(
        algo=cfg.algo.name,
        env_id=cfg.env.name,
        seed=cfg.seed,
        mode=cfg.collect_mode,
        total_timesteps=cfg.total_timesteps,
        device="" if cfg.device == "auto" else cfg.device,
        num_envs=cfg.env.num_envs,
        started_unix_s=unix_s(),
        runner=cfg.runner.name,
        ramps=cfg.algo.ramps,
        stage=cfg.algo.stage if cfg.algo.name == "hora" else "",
        world_size=job.host.num_hosts * cfg.runner.world_size,
        num_collectors=cfg.num_rings,
        num_hosts=job.host.num_hosts,
        collector_threads=job.plan.collector_threads,
        env_step_factors=env_step_factors(cfg, has_evaluator=job.plan.has_evaluator),
        has_gpu=has_gpu(),
        is_resumed=job.start_step > 0,
        best_eval=None if best is None else (best.mean_reward, best.env_steps),
        last_eval_step=None if last_eval is None else last_eval.env_steps,
    )
    # The logger compares advice with what is in force: not with `auto`.
    in_force = replace(cfg, eval=replace(cfg.eval, beside=str(job.plan.has_evaluator).lower()))
    updates = None if run.checkpoint is None else int(run.checkpoint.read(SharedState, "state").numbers["num_updates"])
    # A checkpoint at env step 0, of a stop before the first step, is resumed too: the records since are superseded.
    # So are all records where a run begins again that had saved nothing.
    is_first = run.checkpoint is None and not job.start_step and not job.restarts
    resume_step = None if is_first else job.start_step
    logger = open_logger(run.path, cfg, header, resume_step, in_force, updates, provenance)
    logger.last_eval = last_eval
    return logger


def announce(logger: OffPolicyLogger, job: WorkerSpec, run: RunDir) -> None:
    """Writes the run header."""
    problems = [*unread_warning(job.cfg), *run.warnings]
    if job.spec.max_episode_steps is None and job.cfg.env.batch is None:
        problems.append(
            f"{job.cfg.env.name} is registered without a time limit: episodes that do not end by themselves are cut by"
            f" an evaluation after {MAX_EPISODE_STEPS:,} steps, and never in training;"
            " env.kwargs.max_episode_steps=1000 sets one"
        )
    if job.spec.coarse:
        problems.append(
            f"{', '.join(job.spec.coarse)} of {job.cfg.env.name} is so large that float32, in which observations are"
            " kept, does not hold its changes; env.wrappers=[module:function] can subtract a constant"
        )
    if job.spec.saturates:
        problems.append(
            "env.action_bounds are wider than what has an effect: the first step of an episode ends alike with actions"
            " at the upper bounds and half-way to them; narrower ones say where actions make sense"
        )
    logger.view.message(f"run directory: {run.path}")
    warnings = (f"warning: {problem}" for problem in problems)
    for line in (*_process_lines(job), *_restart_lines(job), *warnings, *_begin_lines(job, run)):
        logger.view.message(line)


def _process_lines(job: WorkerSpec) -> Iterator[str]:
    """Yields the hosts, the memory between collectors and learners, and what works side by side."""
    cfg, host, env, num_collectors = job.cfg, job.host, job.cfg.env, job.cfg.num_rings
    if not host.is_alone:
        attempt = f", restart {host.attempt}" if host.attempt else ""
        yield f"host {host.index} of {host.num_hosts}, launched by torchrun as {host.job}{attempt}"
    memory = f"{transport_nbytes(cfg, job.spec) / 2**20:.1f} MiB of shared memory"
    memory += f" in {num_collectors} rings, one per collector" if num_collectors > 1 else ""
    if cfg.algo.learns_from_rollouts:
        slots = f"{cfg.rollout.slots} of {cfg.rollout.length} steps x {env.num_envs} environments"
        yield f"rollouts: {slots} = {memory}; {cfg.rollout.when_full} when full"
    else:
        if job.collects_tensors:
            memory = f"{2 * transport_nbytes(cfg, job.spec) / 2**20:.1f} MiB on the learner's device"
        yield f"replay: {num_collectors * cfg.replay_rows:,} rows x {row_layout(job.spec).nbytes} B = {memory}"
        if (at_once := env.num_envs * num_collectors * host.num_hosts) > 1:
            per_step = f"{cfg.algo.utd * at_once:g} per vector step of {at_once:,} environments"
            yield f"updates: algo.utd={cfg.algo.utd:g} per env step, {per_step}"
    yield from _ray_lines(job)
    threads = f"threads learner {job.plan.learner_threads}"
    threads += "; it collects too" if cfg.collects_in_learner else f", collector {job.plan.collector_threads}"
    yield f"{cfg.runner.name}, {cfg.collect_mode}: {threads}"
    if env.num_envs > 1:
        yield _env_line(job)
    if cfg.eval.episodes > 1 and cfg.eval.num_envs is None and not is_own(env):
        yield f"evaluation: one episode after another; eval.num_envs={cfg.eval.episodes} runs all at once"
    if job.plan.has_evaluator:
        yield "evaluation: beside training, in a process with its own thread"
    num_ranks = host.num_hosts * cfg.runner.world_size
    if num_ranks > 1:
        parts = f"batch {cfg.algo.batch_size // num_ranks} per rank, {cfg.algo.batch_size} together"
        if cfg.algo.learns_from_rollouts:
            parts = f"{counted(num_collectors // cfg.runner.world_size, 'collector')} per rank"
        yield f"{num_ranks} learner ranks average gradients: {parts}"
    yield from (f"plug-in: {plugin.label}" for plugin in plugins_of(cfg))


def _ray_lines(job: WorkerSpec) -> Iterator[str]:
    """Yields where the remote hosts are, if there are any, and what their cluster takes of this one."""
    cfg, store, known = job.cfg, "with the object stores of ray start", "20 s with Ray's default health checks"
    if not cfg.collect.remote_hosts:
        return
    if cfg.starts_ray:
        kept = "rollouts" if cfg.algo.learns_from_rollouts else "replay"
        size = f"{transport_nbytes(cfg, job.spec) / 2**20:.0f} MiB of {kept}"
        store, known = f"object store {RAY_STORE_BYTES / 2**20:.0f} MiB beside {size}", "2 s"
    hosts = f"{counted(cfg.collect.remote_hosts, 'remote host')} of Ray at {cfg.runner.ray}"
    yield f"{hosts}: {store}; a lost one is known within {known}"


def _env_line(job: WorkerSpec) -> str:
    env = job.cfg.env
    how = f"env.vectorization={env.vectorization}"
    if is_batch(env):
        how = "one batch" if env.batch else f"{how}, one batch"
        num_threads = min(job.plan.env_threads, env.num_envs) if is_batched_task(env) else 1
        how += f" on {num_threads} threads" if num_threads > 1 else ""
        how += ", without final observations: biased at the time limit" if env.final_obs == "missing" else ""
    why = None if env.batch else slower_because(env)
    return f"environments: {env.num_envs} x {env.name}, {how}" + (f", because {why}" if why else "")


def _restart_lines(job: WorkerSpec) -> Iterator[str]:
    """Yields what the death of a process costs where that may be more than a minute of env steps."""
    cfg, saves, costs = job.cfg, job.cfg.checkpoint, list[str]()
    if not 0 < saves.every_min <= 1:
        since = [f"{saves.every_min:g} minutes of work"] if saves.every_min else []
        since += [f"the work of {saves.every:,} env steps"] if saves.every else []
        costs.append(f"up to {' or '.join(since) or 'all work'} is done again")
    if not saves.replay and not cfg.algo.learns_from_rollouts:
        first = first_learning_step(cfg, job.host.num_hosts)
        costs.append(f"the replay is lost (checkpoint.replay=false), and learning waits for {first:,} new env steps")
    if costs:
        yield f"if a process is killed, all begin again from the newest checkpoint: {'; '.join(costs)}"


def _begin_lines(job: WorkerSpec, run: RunDir) -> Iterator[str]:
    """Yields where the run begins, unless that is at its first env step with new networks, and what was another."""
    cfg = job.cfg
    if run.checkpoint is not None:
        now = [plugin.label for plugin in plugins_of(cfg)]
        before = run.checkpoint.read(SharedState, "state").fingerprint.get(PLUGINS_KEY, [])
        if now != before:
            yield f"warning: plug-ins of the checkpoint: {', '.join(before) or 'none'}; now: {', '.join(now) or 'none'}"
    if job.restarts:
        where = "from the beginning" if job.checkpoint is None else f"at env step {job.start_step:,}, the checkpoint's"
        yield f"all processes begin again {where}"
    elif job.start_step:
        yield f"resuming at env step {job.start_step:,}"
    elif job.origin_step is not None:
        other, whose = Path(cfg.teacher or cfg.init_from or ""), "the teacher's" if cfg.teacher else "its"
        text = f"teacher: {other}" if cfg.teacher else f"networks and normalisers: of {other}"
        yield f"{text}, env step {job.origin_step:,}"
        for difference in env_differences(read_config(other).env, cfg.env):
            yield f"warning: {whose} environment was another one: {difference}"


def unread_warning(cfg: RunConfig) -> list[str]:
    """Returns a line on the options that nothing reads in the run; none if there is no such option."""
    values = flatten(cfg.to_mapping())
    found = [
        (f"{key}={as_override(values[key])}" if key in values else key) + f" (read with {needs})"
        for key, needs in unread_options(cfg).items()
    ]
    return [f"nothing reads in this run: {', '.join(found)}"] if found else []

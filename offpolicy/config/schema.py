"""The configuration of a run, checked as a whole, and the rules that join several keys.

`RunConfig.from_mapping` turns a plain nested mapping into a checked `RunConfig` and reports every problem at once:
unknown keys with the nearest known one, wrong types, values out of range, impossible combinations.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from offpolicy import plugins
from offpolicy.config.algorithms import (
    ADAPTING,
    REPLAY,
    ROLLOUTS,
    AlgoConfig,
    algorithm_info,
    algorithm_plugin,
    exact_utd,
)
from offpolicy.config.extensions import NetworkInfo, SinkInfo, network_plugin, options_of, sink_plugin
from offpolicy.config.parsing import NO_CLASSES, Classes, Parser, Spec, flatten, option, plain, section, specs_of
from offpolicy.config.sections import (
    MODE_RUNNERS,
    RANK_RUNNERS,
    RUNNER_DEFAULT_MODE,
    CheckpointConfig,
    CollectConfig,
    EnvConfig,
    EvalConfig,
    LogConfig,
    ReplayConfig,
    RolloutConfig,
    RunnerConfig,
    StopConfig,
    ThreadsConfig,
    TimingConfig,
)
from offpolicy.errors import ConfigError
from offpolicy.types import Json

TARGET = r"[\w.]+:\w+"  # module:name
RAY_ADDRESS = r"local|[^:/]+:[0-9]+"  # not `ray://` either: a client of Ray is ten times slower
STEPS_PER_BAD_ROW = 10_000  # env steps of a batch for each transition that may be dropped
JSON_TYPES = (str, int, float, bool, types.NoneType)  # not their subclasses, which YAML refuses

# Configuration that may change when a run is resumed; anything else would make it another experiment.
RESUMABLE = (
    *("total_timesteps", "device", "log", "sinks", "eval", "stop", "checkpoint", "timing", "threads", "runner"),
    *("env.step_timeout_s", "algo.compile", "callbacks", "collect.remote_hosts"),
    *("env.vectorization", "env.success", "env.measure", "env.on_error", "env.max_bad_rows"),
    *(f"replay.{name}" for name in ("source", "demos", "demo_share", "device_share", "slots")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything a run needs; the resolved form is written to `config.yaml` of the run directory."""

    algo: AlgoConfig = section(AlgoConfig)
    runner: RunnerConfig = section(RunnerConfig)
    env: EnvConfig = section(EnvConfig)
    replay: ReplayConfig = section(ReplayConfig, needs=REPLAY)
    rollout: RolloutConfig = section(RolloutConfig, needs=ROLLOUTS)
    collect: CollectConfig = section(CollectConfig)
    eval: EvalConfig = section(EvalConfig)
    stop: StopConfig = section(StopConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    log: LogConfig = section(LogConfig)
    sinks: dict[str, Json] = option({}, "options of the plug-ins that log.sinks names: sinks.<name>.<option>")
    timing: TimingConfig = section(TimingConfig)
    threads: ThreadsConfig = section(ThreadsConfig)
    seed: int = option(1, "one seed for every stream", ge=0, lt=2**31)
    total_timesteps: int = option(20_000, "env steps to train for", ge=1)
    device: str = option("auto", "auto (cuda, else cpu), cpu, cuda or cuda:<index>")
    teacher: str | None = option(None, "run directory of the teacher, a run of algo=hora stage=teach", needs=ADAPTING)
    init_from: str | None = option(
        None, "a run whose networks and normalisers this one begins with: directory, beginning of its name, or latest"
    )
    callbacks: tuple[str, ...] = option(
        (), "module:Name of callbacks (offpolicy.logger.callbacks.Callback), called with records and evaluations"
    )
    run_dir: str | None = option(None, "run directory; null: runs/<algo>/<env id>/<time>-s<seed>")
    resume: str = option("auto", "what to do with an existing run directory", choices=("auto", "must", "never"))

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Json]) -> RunConfig:
        """Returns the checked configuration. Raises `ConfigError` listing every problem."""
        classes = plugin_classes(raw)
        parser = Parser(dict(specs_of(cls, classes)), classes)
        config = parser.build(cls, raw)
        for name in config.log.sinks:
            key = f"sinks.{name}"
            config.sinks[name] = parser.build(classes[key], config.sinks.get(name) or {}, f"{key}.")
        if problems := parser.problems or broken_rules(config):
            raise ConfigError(problems)
        return config

    def to_mapping(self) -> dict[str, Json]:
        """Returns the nested mapping of plain values, as `config.yaml` of a run directory has it."""
        mapping: dict[str, Json] = plain(asdict(self))
        return mapping

    def specs(self) -> dict[str, Spec]:
        """Returns every dotted key as it is declared, those of plug-ins in use among them."""
        own = {f"sinks.{name}": type(self.sinks[name]) for name in self.log.sinks}
        return specs({"algo": type(self.algo), "algo.network": type(self.algo.network), **own})

    def values_by_key(self) -> dict[str, Json]:
        """Returns the value of every declared key, whole where it is a mapping itself."""
        tree = self.to_mapping()
        return {key: functools.reduce(operator.getitem, key.split("."), tree) for key in self.specs()}

    @property
    def collect_mode(self) -> str:
        """The collection mode, or the runner's default; with `auto` the one that a run begins with."""
        first = "alternate" if self.collect.mode == "auto" or self.collects_in_learner else self.collect.mode
        return first or RUNNER_DEFAULT_MODE[self.runner.name]

    @property
    def collects_in_learner(self) -> bool:
        """True if the learner's process steps the environments: there is no process of a collector."""
        return self.collect.process == "learner"

    @property
    def num_rings(self) -> int:
        """Rings of a learner's host, one per collector: of those that run there, or of all remote hosts."""
        return self.collect.num_collectors * max(self.collect.remote_hosts, 1)

    @property
    def num_local_collectors(self) -> int:
        """Processes of a learner's host that step environments; none where remote hosts do."""
        return 0 if self.collect.remote_hosts or self.collects_in_learner else self.collect.num_collectors

    @property
    def starts_ray(self) -> bool:
        """True if the run starts the Ray cluster of its remote collectors itself, on this machine."""
        return self.collect.remote_hosts > 0 and self.runner.ray == "local"

    @property
    def takes_turns(self) -> bool:
        """True if collector and learner work one at a time for the whole run."""
        return self.collect_mode == "alternate" and self.collect.mode != "auto"

    @property
    def max_bad_rows(self) -> int:
        """Transitions with NaN or Inf that a collector drops: `env.max_bad_rows`, or what its null stands for."""
        if self.env.max_bad_rows is not None:
            return self.env.max_bad_rows
        return self.total_timesteps // STEPS_PER_BAD_ROW if self.env.batch or self.env.vectorization == "vector" else 0

    @property
    def ring_capacity(self) -> int:
        """One collector's part of the replay's capacity, in transitions."""
        return self.replay.capacity // self.num_rings

    @property
    def replay_rows(self) -> int:
        """Rows of one collector's ring: its part of the capacity, but never more than the run can write."""
        own_steps = -(-self.total_timesteps // self.num_rings)
        return min(self.ring_capacity, own_steps + self.env.num_envs * self.algo.n_step)


def specs(classes: Classes = NO_CLASSES) -> dict[str, Spec]:
    """Returns every dotted key of a configuration as it is declared."""
    return dict(specs_of(RunConfig, classes))


def plugin_classes(raw: Mapping[str, Json]) -> Classes:
    """Returns the classes of the plug-ins that a nested mapping names, by the key of their section.

    Raises `ConfigError`: the options of a plug-in that cannot be used are unknown.
    """
    given = flatten(raw)
    algo, network, sinks = (given.get(key) for key in ("algo.name", "algo.network.name", "log.sinks"))
    found: dict[str, type] = {}
    if isinstance(algo, str) and (options := algorithm_info(algo).options) is not None:
        found["algo"] = options
    if isinstance(network, str):
        found["algo.network"] = options_of(network_plugin(network), NetworkInfo)
    for name in sinks if isinstance(sinks, list | tuple) and all(isinstance(name, str) for name in sinks) else ():
        found[f"sinks.{name}"] = options_of(sink_plugin(name), SinkInfo)
    return found


def plugins_of(cfg: RunConfig) -> list[plugins.Plugin]:
    """Returns the plug-ins that a configuration uses, but for an environment's preset: its values are used."""
    network = cfg.algo.network.name
    found = [algorithm_plugin(cfg.algo.name), network and network_plugin(network), *map(sink_plugin, cfg.log.sinks)]
    return [plugin for plugin in found if isinstance(plugin, plugins.Plugin)]


def unread_options(cfg: RunConfig) -> dict[str, str]:
    """Returns what an option needs to be read, by its key: those that are set, and that nothing reads in this run."""
    values, specs = cfg.values_by_key(), cfg.specs()
    found = {key: needs for key, needs in unread_keys(cfg).items() if values[key] != specs[key].default}
    return found | {f"sinks.{name}": f"log.sinks=[{name}]" for name in cfg.sinks if name not in cfg.log.sinks}


def unread_keys(cfg: RunConfig) -> dict[str, str]:
    """Returns the conditions of `needs` that do not hold in this run, by the key of the option that nothing reads."""
    info, found = cfg.algo.info, dict[str, str]()
    values = cfg.values_by_key() | {"algo.stage": info.stage or "teach", "collect.mode": cfg.collect_mode}
    if info.options is None or info.like is not None:  # what another plug-in reads is its own affair
        values["algo"] = (info.like or info).name
    for key, spec in cfg.specs().items():
        if unmet := [condition for condition in spec.limits["needs"].split() if not _holds(condition, values)]:
            found[key] = " ".join(unmet)
    return found


def _holds(condition: str, values: Mapping[str, Json]) -> bool:
    """True if a condition of `needs` holds, or its key has no value: `key=a,b`, `key!=a,b` or `key<key`."""
    key, sign, operand = re.split("(!=|=|<)", condition)
    if sign == "<":
        return bool(values[key] < values[operand])
    is_one = key in values and json.dumps(values[key]).strip('"') in operand.split(",")
    return key not in values or is_one == (sign == "=")


def broken_rules(cfg: RunConfig) -> list[str]:
    """Returns the problems of a configuration whose values are each allowed by themselves."""
    found = [*_name_rules(cfg), *_env_rules(cfg), *_algo_rules(cfg), *_runner_rules(cfg)]
    found += in_process_problems(cfg) if cfg.collects_in_learner else []
    return [*found, *(_rollout_rules(cfg) if cfg.algo.learns_from_rollouts else _replay_rules(cfg))]


def device_problems(name: object) -> list[str]:
    """Returns what is wrong with the name of a device."""
    if isinstance(name, str) and re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        return []
    return [f"device: got {name!r}, allowed auto, cpu, cuda or cuda:<index>"]


def _env_rules(cfg: RunConfig) -> Iterator[str]:
    if cfg.env.batch is not None and cfg.env.id:
        yield f"env.batch: got {cfg.env.batch}, allowed without env.id, which is {cfg.env.id}: it is the environment"
    if cfg.env.batch is not None and cfg.env.wrappers:
        yield "env.wrappers: allowed without env.batch: they wrap one environment, and this is many in one"
    if cfg.env.batch is not None and not re.fullmatch(TARGET, cfg.env.batch):
        yield f"env.batch: got {cfg.env.batch!r}, allowed module:factory, such as mine:make_batch"
    if cfg.env.batch is None and not cfg.env.id:
        yield "env.id: got '', allowed a Gymnasium id such as Pendulum-v1 or module:EnvId-v0"
    for key, value in cfg.env.kwargs.items():
        if not _is_json(value):
            yield f"env.kwargs.{key}: got {value!r}, allowed what JSON has: numbers, texts, true, null, lists, mappings"
    if cfg.env.kwargs.get("render_mode") == "human":
        yield "env.kwargs.render_mode: got 'human', allowed rgb_array: offpolicy play RUN opens a window"
    if cfg.env.wrappers and cfg.env.vectorization in ("mujoco", "vector"):
        yield (
            f"env.vectorization: got {cfg.env.vectorization}, allowed auto, sync or async with env.wrappers: they wrap"
            " one environment, and this is many in one"
        )


def _name_rules(cfg: RunConfig) -> Iterator[str]:
    """Yields what is wrong with the names of a device, paths, things in modules and an address."""
    yield from device_problems(cfg.device)
    paths = {
        "run_dir": cfg.run_dir, "teacher": cfg.teacher, "init_from": cfg.init_from, "replay.demos": cfg.replay.demos,
    }  # fmt: skip
    for key, path in paths.items():
        if path is not None and (not path or path.startswith("~")):
            yield f"{key}: got {path!r}, allowed a whole path or null; is a variable of the shell unset?"
    for key, names in {"env.wrappers": cfg.env.wrappers, "callbacks": cfg.callbacks}.items():
        for name in names:
            if not re.fullmatch(TARGET, name):
                yield f"{key}: got {name!r}, allowed module:name, such as mine:Squashed"


def _is_json(value: Json) -> bool:
    """True if a value is one of JSON: processes get the configuration as JSON."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return all(map(_is_json, value)) if isinstance(value, list | tuple) else type(value) in JSON_TYPES


def _algo_rules(cfg: RunConfig) -> Iterator[str]:
    """Yields what does not fit the algorithm, its stage or its length."""
    algo, total = cfg.algo, cfg.total_timesteps
    if algo.is_adapting:
        if cfg.teacher is None:
            yield "teacher: got null, allowed a run directory of algo=hora stage=teach, to begin with"
        if algo.lr_schedule == "kl_adaptive":
            yield "algo.lr_schedule: got kl_adaptive, allowed constant or linear with stage=adapt: it has no KL"
        if cfg.init_from:
            yield f"init_from: got {cfg.init_from!r}, allowed null with stage=adapt: it begins with its teacher"
    if algo.network.name is not None and (algo.name in ("hora", "flashsac") or algo.actor_input != "all"):
        yield (
            f"algo.network.name: got {algo.network.name}, allowed null with algo={algo.name}"
            f" algo.actor_input={algo.actor_input}: an encoder needs sac, td3 or appo, and the whole observation"
        )
    if "lr" in algo.ramps and algo.lr_schedule != "constant":
        yield f"algo.lr: got a schedule, allowed a number with algo.lr_schedule={algo.lr_schedule}, which is one"
    if (first := first_update_step(cfg)) > total:
        envs = f"env.num_envs={cfg.env.num_envs} x collect.num_collectors={cfg.collect.num_collectors}"
        envs += f" x collect.remote_hosts={hosts}" if (hosts := cfg.collect.remote_hosts) else ""
        warmup = f"algo.learning_starts={algo.learning_starts} or algo.n_step={algo.n_step} x {envs}"
        on = f"{warmup}, and 1 / algo.utd={algo.utd:g}"
        if algo.learns_from_rollouts:
            on = f"rollout.length={cfg.rollout.length} x {envs}"
        yield f"total_timesteps: got {total}, allowed at least {first}, the env step of the first update: {on}"


def first_update_step(cfg: RunConfig, num_hosts: int = 1) -> int:
    """Returns the env steps by which the first update is due; each of the hosts has the collectors of `cfg`."""
    envs = cfg.env.num_envs * cfg.num_rings * num_hosts
    if cfg.algo.learns_from_rollouts:
        return cfg.rollout.length * envs
    return max(cfg.algo.learning_starts, cfg.algo.n_step * envs) + math.ceil(1 / exact_utd(cfg.algo.utd))


def _runner_rules(cfg: RunConfig) -> Iterator[str]:
    runner, algo = cfg.runner, cfg.algo
    if algo.learns_from_rollouts != (runner.name == "appo"):
        fitting = "appo" if algo.learns_from_rollouts else "single_gpu, double_buffer or multi_gpu"
        yield f"runner: got {runner.name}, allowed {fitting} with algo={algo.name}"
    if runner.world_size != 1 and runner.name not in RANK_RUNNERS:
        yield (
            f"runner.world_size: got {runner.world_size}, allowed 1 with runner={runner.name}; several learner ranks"
            " need runner=multi_gpu"
        )
    if cfg.collect.mode == "auto" and runner.name not in MODE_RUNNERS:
        yield f"collect.mode: got auto, allowed alternate, overlap or free with runner={runner.name}"
    if runner.backend == "nccl" and cfg.device == "cpu":
        yield "runner.backend: got nccl, allowed auto or gloo with device=cpu: NCCL joins GPUs only"
    if runner.backend == "nccl" and runner.world_size > 1 and ":" in cfg.device:
        yield (
            f"runner.backend: got nccl, allowed auto or gloo with device={cfg.device}: NCCL refuses"
            f" {runner.world_size} ranks on one GPU; device=cuda gives each rank its own"
        )
    if not re.fullmatch(RAY_ADDRESS, runner.ray):
        yield f"runner.ray: got {runner.ray!r}, allowed local, or HOST:PORT of the head of a Ray cluster"
    if runner.name == "double_buffer" and cfg.replay.source not in ("auto", "prefetch"):
        yield f"replay.source: got {cfg.replay.source}, allowed prefetch or auto with runner=double_buffer"


def in_process_problems(cfg: RunConfig) -> Iterator[str]:
    """Yields what the learner's process cannot do where it steps the environments itself."""
    with_it = "with collect.process=learner"
    if cfg.algo.learns_from_rollouts:
        yield f"collect.process: got learner, allowed own with algo={cfg.algo.name}, which learns from rollouts"
    if cfg.collect.mode not in (None, "alternate"):
        yield f"collect.mode: got {cfg.collect.mode}, allowed alternate {with_it}: one thread does one thing at a time"
    for key, count in {
        "collect.num_collectors": cfg.collect.num_collectors, "runner.world_size": cfg.runner.world_size,
    }.items():  # fmt: skip
        if count != 1:
            yield f"{key}: got {count}, allowed 1 {with_it}"
    if cfg.collect.remote_hosts:
        yield f"collect.remote_hosts: got {cfg.collect.remote_hosts}, allowed 0 {with_it}"


def _replay_rules(cfg: RunConfig) -> Iterator[str]:
    algo, capacity, ranks = cfg.algo, cfg.replay.capacity, cfg.runner.world_size
    rows = {
        "algo.learning_starts": algo.learning_starts,
        "algo.batch_size": algo.batch_size,
        # One vector step must not recycle half of a ring.
        "2 * collect.num_collectors * env.num_envs * algo.n_step": 2 * cfg.num_rings * cfg.env.num_envs * algo.n_step,
    }
    for key, least in rows.items():
        if capacity < least:
            yield f"replay.capacity: got {capacity}, allowed at least {key}={least}"
    if algo.batch_size % ranks:
        yield (
            f"algo.batch_size: got {algo.batch_size}, allowed a multiple of runner.world_size={ranks}: each rank takes"
            " an equal part of the batch"
        )
    if algo.scales_reward and algo.n_step > 1:
        yield (
            f"algo.n_step: got {algo.n_step}, allowed 1 with algo.scale_reward=true: the running return is one of"
            " single rewards, and rows of n steps hold sums; write algo.scale_reward=false"
        )
    if cfg.device == "cpu" and algo.compile == "graph":
        yield "algo.compile: got graph, allowed off with device=cpu: CUDA alone captures graphs"
    if cfg.device == "cpu" and algo.precision == "bf16":
        yield "algo.precision: got bf16, allowed fp32 with device=cpu"
    why_not_fast = algo.why_not_fast or (f"device={cfg.device}" if cfg.device.startswith("cuda") else "")
    if algo.kernels == "fast" and why_not_fast:
        yield f"algo.kernels: got fast, allowed auto or textbook with {why_not_fast}"
    yield from rank_problems(cfg, ranks)


def rank_problems(cfg: RunConfig, num_ranks: int) -> Iterator[str]:
    """Yields what `num_ranks` learner ranks that sample from a replay cannot do."""
    if num_ranks > 1 and cfg.algo.compile == "graph":
        yield (
            f"algo.compile: got graph, allowed off with {num_ranks} learner ranks, which wait for each other within an"
            " update"
        )
    share, rows = cfg.replay.demo_share, cfg.algo.batch_size // num_ranks
    if cfg.replay.demos is not None and not 0 < round(share * rows) < rows:
        yield (
            f"replay.demo_share: got {share:g}, allowed a share that is at least one of the {rows} rows of a batch of"
            " one rank, and not all of them"
        )


def _rollout_rules(cfg: RunConfig) -> Iterator[str]:
    ranks, collectors = cfg.runner.world_size, cfg.num_rings
    if collectors % ranks:
        yield (
            f"collect.num_collectors: got {collectors}, allowed a multiple of runner.world_size={ranks}: each rank"
            " learns from its own collectors"
        )
        return
    rows = cfg.rollout.length * cfg.env.num_envs * (collectors // ranks)
    if rows % cfg.algo.num_minibatches:
        yield (
            f"algo.num_minibatches: got {cfg.algo.num_minibatches}, allowed a divisor of the {rows} rows of a batch"
            f" (rollout.length={cfg.rollout.length} x env.num_envs={cfg.env.num_envs} x"
            f" {collectors // ranks} collectors per rank)"
        )
    if cfg.collect.remote_hosts and cfg.rollout.when_full == "drop":
        yield "rollout.when_full: got drop, allowed block with collect.remote_hosts: a call is a grant"
    if cfg.algo.trace_clip > cfg.algo.rho_clip:
        yield f"algo.trace_clip: got {cfg.algo.trace_clip:g}, allowed at most algo.rho_clip={cfg.algo.rho_clip:g}"

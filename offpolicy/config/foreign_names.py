"""The names that other trainers give to our keys, so that a refusal can say what to write here.

From Stable-Baselines3, rl-baselines3-zoo, CleanRL, Spinning Up, tianshou, rsl_rl, rl_games and the authors of TD3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offpolicy.config.parsing import as_override, flatten, is_within, nested
from offpolicy.config.sections import ALGORITHMS, AlgorithmInfo
from offpolicy.config.usable import example_of, is_fit, keys_for

LR = ("algo.lr", "algo.actor_lr", "algo.critic_lr")
# Ours, by names of others; of several keys those count that the chosen algorithm has.
OURS: Mapping[tuple[str, ...], Sequence[str]] = {
    ("learning_rate", "lr", "step_size", "learning_rate_schedule"): LR,
    ("actor_lr", "policy_lr", "pi_lr", "lr_actor", "actor_learning_rate"): ("algo.actor_lr", "algo.lr"),
    ("critic_lr", "q_lr", "qf_lr", "vf_lr", "value_lr", "lr_critic", "critic_learning_rate"): (
        *("algo.critic_lr", "algo.lr"),
    ),
    ("alpha_lr", "lr_alpha", "temp_lr", "ent_lr"): ("algo.alpha_lr",),
    ("buffer_size", "replay_size", "replay_buffer_size", "memory_size", "memory", "max_size", "replay_capacity"): (
        "replay.capacity",
    ),
    ("train_freq", "update_every", "gradient_steps", "updates_per_step", "num_updates", "utd_ratio", "replay_ratio"): (
        "algo.utd",
    ),
    ("n_envs", "num_envs", "nenvs", "num_parallel_envs", "env_num"): ("env.num_envs",),
    ("num_workers", "n_workers", "num_actors", "num_processes"): ("collect.num_collectors",),
    ("total_steps", "total_env_steps", "num_timesteps", "n_timesteps", "timesteps", "max_steps", "max_timesteps"): (
        "total_timesteps",
    ),
    ("num_env_steps", "total_frames", "max_env_steps", "n_total_steps"): ("total_timesteps",),
    ("batch", "minibatch_size", "mini_batch_size"): ("algo.batch_size", "algo.num_minibatches"),
    ("batch_size",): ("algo.batch_size", "algo.num_minibatches"),
    ("policy_delay", "policy_frequency", "policy_freq", "actor_update_freq", "policy_update_freq"): (
        "algo.policy_delay",
    ),
    ("expl_noise", "action_noise", "act_noise", "noise_std", "exploration_noise"): ("algo.exploration_noise",),
    ("policy_noise", "target_policy_noise", "target_noise"): ("algo.target_noise",),
    ("noise_clip", "target_noise_clip"): ("algo.target_noise_clip",),
    ("tau", "polyak", "soft_update_coef", "target_update_tau"): ("algo.tau",),
    ("gamma", "discount", "discount_factor"): ("algo.gamma",),
    ("net_arch", "hidden_sizes", "hidden_size", "hidden_dim", "hidden_units", "layers", "policy_kwargs"): (
        "algo.hidden_dims",
    ),
    ("hidden_dims", "actor_hidden_dims", "critic_hidden_dims"): ("algo.hidden_dims",),
    ("start_steps", "start_timesteps", "warmup_steps", "random_steps", "learn_start", "learning_starts"): (
        "algo.learning_starts",
    ),
    ("initial_random_steps", "prefill", "warmup", "min_buffer_size", "num_seed_steps"): ("algo.learning_starts",),
    ("alpha", "temperature", "init_temperature", "init_alpha"): ("algo.init_alpha",),
    ("ent_coef", "entropy_coef", "entropy_coefficient", "entropy_cost"): ("algo.ent_coef", "algo.init_alpha"),
    ("autotune", "auto_entropy", "automatic_entropy_tuning", "learn_alpha"): ("algo.auto_alpha",),
    ("target_entropy",): ("algo.target_entropy",),
    ("n_steps", "num_steps", "horizon", "rollout_length", "num_steps_per_env", "horizon_length"): (
        *("rollout.length", "algo.n_step"),
    ),
    ("n_step", "nstep", "multi_step"): ("algo.n_step",),
    ("n_epochs", "num_epochs", "update_epochs", "ppo_epochs", "num_learning_epochs", "mini_epochs"): ("algo.epochs",),
    ("num_minibatches", "num_mini_batches", "n_minibatches", "nminibatches"): ("algo.num_minibatches",),
    ("clip_range", "clip_coef", "clip_param", "clip_ratio", "e_clip", "cliprange"): ("algo.clip",),
    ("gae_lambda", "lam", "lambda", "gae_lam"): ("algo.gae_lambda",),
    ("vf_coef", "value_loss_coef", "value_coef", "critic_coef"): ("algo.value_coef",),
    ("max_grad_norm", "grad_clip", "clip_grad_norm", "grad_norm"): ("algo.max_grad_norm",),
    ("desired_kl", "target_kl", "kl_threshold"): ("algo.target_kl",),
    ("activation_fn", "activation"): ("algo.activation",),
    ("normalize", "norm_obs", "obs_norm", "normalize_input", "normalize_obs"): ("algo.normalize_obs",),
    ("env_id", "env_name", "task", "gym_id", "environment", "game"): ("env.id",),
    ("env_kwargs", "env_args"): ("env.kwargs",),
    ("max_episode_steps", "time_limit", "max_ep_len", "episode_length"): ("env.kwargs.max_episode_steps",),
    ("eval_freq", "eval_interval", "eval_every", "evaluation_interval"): ("eval.every",),
    ("n_eval_episodes", "eval_episodes", "num_eval_episodes", "num_test_episodes"): ("eval.episodes",),
    ("save_freq", "save_interval", "save_every", "checkpoint_interval", "checkpoint_freq"): ("checkpoint.every",),
    ("log_interval", "log_freq", "log_every", "print_freq"): ("log.every_s",),
    ("logdir", "log_dir", "log_path", "save_dir", "save_path", "output_dir", "exp_name", "tensorboard_log", "name"): (
        "run_dir",
    ),
    ("cuda", "gpu", "use_gpu", "use_cuda"): ("device",),
    ("track", "wandb", "use_wandb", "wandb_mode"): ("log.wandb",),
    ("wandb_project", "wandb_project_name", "project"): ("log.wandb_project",),
    ("num_threads", "torch_threads", "nthreads", "n_threads", "torch_num_threads"): ("threads.learner",),
    ("world_size", "num_gpus", "n_gpus", "gpus", "nproc_per_node", "devices"): ("runner.world_size",),
    ("verbose", "progress_bar", "panel"): ("log.panel",),
    ("random_seed", "manual_seed", "seed"): ("seed",),
}
KEYS_BY_NAME = {name: keys for names, keys in OURS.items() for name in names}


def _both(value: Any) -> Any:
    return [value, value] if isinstance(value, int) else value


# Values that are counted or written another way there.
CONVERTED: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("train_freq", "update_every"), lambda value: 1.0 / value),
    **dict.fromkeys(("cuda", "gpu", "use_gpu", "use_cuda"), lambda value: "cuda" if value else "cpu"),
    **dict.fromkeys(("track", "wandb", "use_wandb"), lambda value: "online" if value else "disabled"),
    **dict.fromkeys(("hidden_size", "hidden_dim", "hidden_units"), _both),
    **dict.fromkeys(("verbose", "progress_bar"), lambda value: "on" if value else "off"),
}
OTHER_UNITS = ("log_interval", "log_freq", "log_every", "print_freq", "batch", "minibatch_size", "mini_batch_size")


def our_keys(name: str, info: AlgorithmInfo | None) -> list[str]:
    """Returns our keys for what another trainer calls `name`; `info`: the algorithm, None: any."""
    keys = KEYS_BY_NAME.get(name.replace("-", "_").lower(), ())
    infos = ALGORITHMS if info is None else (info,)
    usable = {key for each in infos for key in keys_for(each)}
    own = [key for key in keys if key in usable or is_within(key, ("env.kwargs",))]
    return own if keys is LR else own[:1]


def advice(name: str, value: Any, info: AlgorithmInfo | None) -> str | None:
    """Returns what to write here for `name=value` of another trainer; None if the name is not known.

    Each `key=value` of it was tried: a value that does not fit our key is replaced by its default.
    """
    keys = our_keys(name, info)
    if keys:
        return f"write {' '.join(_assignment(key, name, value) for key in keys)}"
    others = our_keys(name, None)
    return f"leave it out: algo={info.name} has no {others[0]}" if others and info is not None else None


def _assignment(key: str, name: str, value: Any) -> str:
    try:
        converted = CONVERTED.get(name, lambda same: same)(value)
    except (TypeError, ArithmeticError):
        converted = None
    is_usable = converted is not None and name not in OTHER_UNITS and is_fit(key, converted)
    if is_usable and isinstance(converted, float) and converted.is_integer() and is_fit(key, int(converted)):
        converted = int(converted)
    return f"{key}={as_override(converted if is_usable else example_of(key))}"


def without_foreign(
    values: Mapping[str, Any], info: AlgorithmInfo | None, problems: list[str]
) -> Mapping[str, Any]:  # Any: values of the configuration
    """Returns `values` without the keys of other trainers; notes for each what to write instead."""
    known = {key for each in (*ALGORITHMS, *([] if info is None else [info])) for key in keys_for(each)}
    kept: dict[str, Any] = {}
    for key, value in flatten(values).items():
        is_ours = is_within(key, (*known, "env.kwargs", "algo.network", "sinks"))
        name = key.rsplit(".", 1)[-1].lower()
        instead = None if is_ours else advice(name, value, info)
        if instead is None:
            kept[key] = value
        else:
            problems.append(f"{key}: unknown key; {instead}")
    return values if len(kept) == len(flatten(values)) else nested(kept)

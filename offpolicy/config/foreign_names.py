"""Our keys for the names of Stable-Baselines3, rl-baselines3-zoo, CleanRL, Spinning Up, tianshou, rsl_rl and rl_games.

A name that is a key of ours in some section, such as `batch_size`, is not here: it is found as that.
"""

from __future__ import annotations

THEIRS = {
    "algo.actor_lr or algo.critic_lr (with appo and hora algo.lr)": "learning_rate lr step_size",
    "algo.actor_lr": "policy_lr pi_lr lr_actor",
    "algo.critic_lr": "q_lr qf_lr vf_lr value_lr lr_critic",
    "algo.alpha_lr": "lr_alpha temp_lr ent_lr",
    "replay.capacity": "buffer_size replay_size memory_size max_size",
    "algo.utd, updates per env step": "train_freq gradient_steps utd_ratio replay_ratio",
    "env.num_envs": "n_envs nenvs env_num",
    "collect.num_collectors": "num_workers n_workers num_actors",
    "total_timesteps": "timesteps total_steps max_steps n_timesteps num_timesteps total_frames num_env_steps",
    "algo.policy_delay": "policy_frequency policy_freq",
    "algo.exploration_noise": "expl_noise action_noise act_noise",
    "algo.target_noise": "policy_noise target_policy_noise",
    "algo.target_noise_clip": "noise_clip",
    "algo.tau": "polyak soft_update_coef",
    "algo.gamma": "discount discount_factor",
    "algo.hidden_dims": "net_arch policy_kwargs hidden_sizes hidden_size actor_hidden_dims critic_hidden_dims",
    "algo.learning_starts": "start_steps start_timesteps warmup_steps random_steps",
    "algo.init_alpha": "alpha temperature",
    "algo.ent_coef": "entropy_coef",
    "algo.auto_alpha": "autotune auto_entropy",
    "algo.n_step (with appo rollout.length)": "n_steps num_steps num_steps_per_env horizon",
    "algo.epochs": "n_epochs update_epochs num_learning_epochs mini_epochs",
    "algo.num_minibatches": "num_mini_batches minibatch_size",
    "algo.clip": "clip_range clip_coef clip_param e_clip",
    "algo.gae_lambda": "lam",
    "algo.value_coef": "vf_coef value_loss_coef critic_coef",
    "algo.max_grad_norm": "grad_clip grad_norm",
    "algo.target_kl": "desired_kl kl_threshold",
    "algo.normalize_obs": "norm_obs normalize_input",
    "env.id": "env_id env_name task gym_id",
    "env.kwargs": "env_kwargs env_args",
    "env.kwargs.max_episode_steps": "max_episode_steps time_limit max_ep_len",
    "eval.every": "eval_freq eval_interval",
    "eval.episodes": "n_eval_episodes num_test_episodes",
    "checkpoint.every": "save_freq save_interval",
    "log.every_s": "log_interval log_freq",
    "run_dir": "logdir log_dir save_dir save_path tensorboard_log exp_name",
    "device": "cuda gpu use_gpu",
    "log.wandb": "track wandb_mode",
    "threads.learner": "num_threads torch_threads",
    "runner.world_size": "num_gpus n_gpus gpus nproc_per_node",
    "log.panel": "verbose progress_bar",
}
OURS = {name: key for key, names in THEIRS.items() for name in names.split()}

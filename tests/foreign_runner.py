"""A training loop of another shape, timed by `log_step`: evolution strategies on a quadratic."""

import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from offpolicy.config.sections import LogConfig
from offpolicy.logger.record import RunHeader
from offpolicy.logger.step_logger import open_step_logger

POPULATION, HORIZON, GENERATIONS = 16, 50, 60


def main(path: Path) -> None:
    rng, mean = np.random.default_rng(0), np.zeros(4)
    header = RunHeader(algo="es", env_id="Quadratic-v0", seed=0, mode="alternate", total_timesteps=48_000)
    with closing(open_step_logger(path, header, LogConfig(every_s=0.02), {"population": POPULATION})) as logger:
        for generation in range(1, GENERATIONS + 1):
            begin = time.perf_counter()
            noise = rng.normal(size=(POPULATION, 4))
            time.sleep(0.004)  # the episodes
            returns = -HORIZON * ((mean + 0.1 * noise - 1.0) ** 2).sum(axis=1)
            played = time.perf_counter()
            mean += 1e-4 * (returns - returns.mean()) @ noise / (0.1 * POPULATION)
            time.sleep(0.001)  # a larger update
            end = time.perf_counter()
            vector_steps = POPULATION * HORIZON  # one environment, played in turn
            play_ms, learn_ms = 1e3 * (played - begin) / vector_steps, 1e3 * (end - played) / vector_steps
            logger.update_collector_timing({"env_step_ms": play_ms, "sync_coordination_ms": learn_ms})
            logger.log_step(
                generation, metrics={"actor_loss": -returns.mean()}, reward=returns.mean(),
                collector_wait_time=played - begin, train_time=end - played, iteration_time=time.perf_counter() - begin,
                extra_info={"throughput_steps": vector_steps, "learner_samples_per_iter": POPULATION},
            )  # fmt: skip
        logger.finish_steps(reason=f"{GENERATIONS} generations")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

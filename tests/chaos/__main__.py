"""`make chaos [seed=3] [minutes=20] [scene=sac,appo] [story=7]`: every runner and algorithm under random faults.

Prints its seed first. `story` repeats one story of a seed. Exits with 1 when an invariant was violated.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.life import References, Story, chaos, run_story
from tests.chaos.scenes import SCENES

COUNTED = ("signals", "kills", "resumes")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--scene", default="", help="names of scenes, separated by commas (default: all)")
    parser.add_argument("--story", type=int, help="repeat this story of the seed only; needs the same --scene")
    parser.add_argument("--directory", type=Path, help="where the runs are kept (default: a temporary directory)")
    given = parser.parse_args(words)
    known = [scene.name for scene in SCENES]
    names = given.scene.split(",") if given.scene else known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--scene: got {', '.join(unknown)}, allowed {', '.join(known)}")
    scenes = tuple(scene for scene in SCENES if scene.name in names)
    directory = given.directory or Path(tempfile.mkdtemp(prefix="offpolicy-chaos-"))
    print(f"chaos: seed={given.seed} minutes={given.minutes:g}, in {directory}", flush=True)
    if given.story is None:
        stories = chaos(given.seed, given.minutes, directory, scenes, lambda text: print(text, flush=True))
    else:
        rng = random.Random(given.seed)
        later = [rng.choice(scenes) for _ in range(max(0, given.story - len(scenes) + 1))]
        scene = later[-1] if later else scenes[given.story]
        own = random.Random(f"{given.seed}-{given.story}")
        stories = [run_story(scene, own, directory / f"again-{given.story}", References(directory))]
        print(stories[0], *stories[0].violations, sep="\n")
    report(stories, given.seed)
    return int(any(story.violations for story in stories))


def report(stories: list[Story], seed: int) -> None:
    """Prints the counts, and the seed again."""
    codes = Counter(code for story in stories for _, code in story.lives)
    lives = sum(codes.values())
    bad = [story for story in stories if story.violations]
    ends = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    fired = sum(story.num_fired for story in stories)
    signals, kills, resumes = (sum(getattr(story, f"num_{what}") for story in stories) for what in COUNTED)
    print(
        f"chaos: seed={seed}: {len(stories)} runs, {lives} lives (exit codes {ends}), {fired} injected faults that"
        f" happened, {signals} signals, {kills} kills among both, {resumes} resumes; {len(bad)} runs with violations"
    )


if __name__ == "__main__":
    sys.exit(main())

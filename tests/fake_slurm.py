"""`sbatch`, `srun`, `squeue` and `scancel` that run jobs on this machine; the number of a job is its pid."""

from __future__ import annotations

import sys
from pathlib import Path

SBATCH = r"""#!{python}
import re, shlex, subprocess, sys, pathlib
if "--version" in sys.argv:
    print("slurm 24.05"); sys.exit(0)
script = pathlib.Path(sys.argv[-1])
if "--partition=none" in sys.argv:
    sys.exit("sbatch: error: invalid partition specified: none")
lines = re.findall(r"#SBATCH --(output|error)=(.*)", script.read_text(errors="surrogateescape"))
place = {{name: shlex.split(path)[0].replace("%%", "%") for name, path in lines}}
out, err = open(place["output"], "ab"), open(place["error"], "ab")
job = subprocess.Popen(["bash", str(script)], stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)
pathlib.Path({log!r}).open("a", errors="surrogateescape").write(" ".join(sys.argv[1:]) + "\n")
print(f"{{job.pid}};cluster")
"""
SRUN = """#!/bin/bash
exec "$@"
"""
SQUEUE = """#!/bin/bash
if [ -e "$(dirname "$0")/down" ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
number=$(echo "$*" | sed 's/.*--jobs \\([0-9]*\\).*/\\1/')
state=$(sed 's/.*) //' /proc/$number/stat 2>/dev/null | cut -c1)
if [ -z "$state" ] || [ "$state" = Z ]; then echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi
echo RUNNING
"""
SCANCEL = """#!/bin/bash
kill -TERM -- "-$1"
"""


def install(directory: Path) -> Path:
    """Writes the four programs into a directory and returns the file in which `sbatch` notes what it was given."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "submitted"
    programs = {"srun": SRUN, "squeue": SQUEUE, "scancel": SCANCEL}
    programs["sbatch"] = SBATCH.format(python=sys.executable, log=str(log))
    for name, text in programs.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return log

"""Keep the user's settings away from scheduler commands.

``SQUEUE_PARTITION`` hides jobs, ``SBATCH_TIMELIMIT`` changes requests, and inside a job Slurm itself sets dozens of
variables that ``sbatch`` reads as requests.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from leadline.core.processes import CompletedProcess
from leadline.execution.processes import run_process

WISHES = {
    "SBATCH_ACCOUNT": "--account", "SBATCH_PARTITION": "--partition", "SBATCH_QOS": "--qos",
    "SBATCH_RESERVATION": "--reservation", "SBATCH_CLUSTERS": "--clusters", "SLURM_CLUSTERS": "--clusters",
}  # fmt: skip
"""Variables that say where a job goes and who pays. Leadline turns them into options, which a dry run shows."""
SETTINGS = (
    "^(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SQUEUE|SACCT|SACCTMGR|SCONTROL|SCANCEL|SINFO|SPRIO|SSTAT|PBS|QSUB|QSTAT)"
    "_[A-Z0-9_]*$"
)
REACH = (
    "^(SLURM_(CONF|CONF_SERVER|JWT|SACK_.*)|PBS_(CONF_FILE|DEFAULT|SERVER|EXEC|HOME|PRIMARY|SECONDARY|AUTH_METHOD)|"
    + "|".join(WISHES)
    + ")$"
)
"""Variables without which the commands would not reach the cluster, and ``WISHES``."""
UNSET = (
    "unset -v LEADLINE_NO_SETTING $(awk 'BEGIN { for (name in ENVIRON) "
    f"if (name ~ /{SETTINGS}/ && name !~ /{REACH}/) print name }}'); "
)
"""Beginning of a POSIX shell line that removes the settings on another machine."""
_SETTINGS, _REACH = re.compile(SETTINGS), re.compile(REACH)


def run_without_settings(
    argv: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout_s: float | None = None,
) -> CompletedProcess:
    """Run a command as ``run_process`` does, without the user's settings of schedulers (implements ``ProcessRunner``).

    Raises:
        InvalidInput: the program does not exist or is not executable.
    """
    settings = dict.fromkeys(name for name in os.environ if _SETTINGS.match(name) and not _REACH.match(name))
    return run_process(argv, env={**settings, **(env or {})}, cwd=cwd, stdin=stdin, timeout_s=timeout_s)

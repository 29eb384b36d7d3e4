"""List the user's living jobs that bear a key of Leadline, for a plane that lost its journal."""

import re
import secrets
from collections.abc import Iterator

from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.execution.schedulers.port import LivingJob, element_key
from leadline.execution.schedulers.slurm.commands import SlurmCommands
from leadline.execution.schedulers.slurm.parsing import duration_s

_COMMENT = re.compile(r"leadline:([0-9a-f]+)")
_NAME = re.compile(r".*-([0-9a-f]{12})", re.DOTALL)
"""A name with a key at its end, for sites that drop comments."""
FIELDS = ("%i", "%T", "%P", "%l", "%D", "%k", "%j")
"""Id, state, partition, limit, nodes, comment, name."""


def living_jobs(commands: SlurmCommands) -> list[LivingJob]:
    """Ask squeue for all jobs of this user, with each array element on its own.

    Raises:
        SchedulerUnreachable: there was no answer.
    """
    # Names and comments may contain anything but this mark.
    mark = f"<{secrets.token_hex(8)}>"
    layout = "".join(f"{mark}{code}" for code in FIELDS)
    return list(read_living(commands.listed(["squeue", "-a", "-h", "-r", "--me", "-o", layout]), mark))


def read_living(listing: str, mark: str) -> Iterator[LivingJob]:
    """Yield the living jobs in a listing of ``FIELDS``, each after the mark, that bear a key."""
    pieces = iter(listing.split(mark)[1:])
    for scheduler_id, state_text, partition, limit, nodes, comment, name in zip(*[pieces] * len(FIELDS), strict=False):
        state, plain_name = JobState.from_slurm(state_text.strip()), name.rstrip("\n")
        match = _COMMENT.fullmatch(comment.strip()) or _NAME.fullmatch(plain_name)
        if match is None or state not in (JobState.PENDING, JobState.RUNNING):
            continue
        batch, (_, _, index) = match[1], scheduler_id.partition("_")
        resources = ResourceSpec(int(nodes) if nodes.isdecimal() else 1, walltime_s=duration_s(limit))
        spec = JobSpec(plain_name.removesuffix(f"-{batch}"), (), resources, partition=partition)
        key = element_key(batch, index) if index.isdecimal() else batch
        yield LivingJob(key, batch, scheduler_id, state, spec, int(index) if index.isdecimal() else None)

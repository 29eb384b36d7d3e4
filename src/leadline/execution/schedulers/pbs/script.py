"""Write the qsub options and the job script of a submission, for either dialect of PBS."""

import math
import re
import shlex
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePosixPath

from leadline.core.errors import InvalidInput
from leadline.core.jobs import ResourceSpec
from leadline.core.units import MIB, MINUTE_S, format_clock
from leadline.execution.launch import (
    WRAPPER,
    check_command,
    check_walltime,
    command_with_setup,
    exports,
    job_environment,
    wrapper_arguments,
)
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, link_line, log_name, run_once_script
from leadline.execution.schedulers.port import Submission, element_key
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, release_file_name

MAX_NAME_LENGTH = 63
"""Characters of a job name. PBS Professional 14 and Torque 4 allow more, older versions 15."""
SPARSE = 4
"""A range of indices may be this many times longer than the needed indices; the others exit at once."""
_KEY = re.compile(r"[A-Za-z0-9._-]{1,40}")
_TOKEN = re.compile(r"[A-Za-z0-9@._+:/-]+")


class PbsFlavour(StrEnum):
    """Dialect of a PBS."""

    PRO = "pro"
    """PBS Professional and OpenPBS: chunks (``select=2:ncpus=8``), ``-J``, a history (``qstat -x``), JSON."""
    TORQUE = "torque"
    """Torque and its imitators: ``nodes=2:ppn=8``, ``-t``."""


def qsub_options(submission: Submission, flavour: PbsFlavour, output: PurePosixPath) -> list[str]:
    """Return the options of qsub; ``output`` is the file for PBS's own messages.

    There is a single ``-l``, because some versions of qsub do not add up several. ``-r n`` prevents a rerun, because a
    retry is a new attempt.

    Raises:
        InvalidInput: qsub does not allow a value or the indices.
    """
    spec = submission.spec
    options = ["-N", job_name(spec.name, submission.key), "-l", ",".join(_resources(spec.resources, flavour))]
    for option, value in (("-q", spec.partition), ("-A", spec.account)):
        if value is not None:
            options += [option, _checked(option, value)]
    if submission.indices:
        options += ["-J" if flavour is PbsFlavour.PRO else "-t", _array(submission, flavour)]
    if submission.after:
        options += ["-W", f"depend={_depend(submission, flavour)}"]
    return [*options, "-r", "n", "-j", "oe", "-o", _checked("-o", str(output))]


def job_name(name: str, key: str) -> str:
    """Return a name that begins with a letter and ends with a dot and the key.

    Raises:
        InvalidInput: the key contains characters that a name may not have.
    """
    if not _KEY.fullmatch(key):
        raise InvalidInput(f"{key!r} cannot be a job's key: use up to 40 letters, digits, dots, dashes and underscores")
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    return f"{plain[: MAX_NAME_LENGTH - 1 - len(key)]}.{key}"


def job_script(submission: Submission, folder: PurePosixPath, *, python: str) -> str:
    """Return the script: the job's variables and its command, measured by an interpreter of the nodes with Leadline.

    The command runs once, on the job's first node, and may start its own ranks (``mpirun`` reads ``PBS_NODEFILE``).
    Outcome and output go to ``folder``/runs under the attempt's key. Unwanted elements of an array exit at once.

    Raises:
        InvalidInput: the command is missing, or a variable name or the key is not possible.
    """
    spec = submission.spec
    check_command(spec)
    job_name("", submission.key)
    runs = shlex.quote(str(folder / RUNS_FOLDER))
    lines = ["#!/bin/bash", *_identity_lines(submission), *exports(job_environment(spec))]
    # PBS starts jobs in the home folder.
    lines += [] if spec.workdir else ['cd -- "${PBS_O_WORKDIR:-.}"']
    log = f'{runs}/"{log_name("$LEADLINE_KEY")}"'
    lines += [f"(umask 077; mkdir -p {runs}; : >> {log})", f"exec >> {log} 2>&1"]
    if submission.link and spec.workdir:
        index = "_$LEADLINE_INDEX" if submission.indices else ""
        lines.append(link_line(folder, f'{shlex.quote(spec.workdir)}/"leadline-{submission.link}{index}.out"'))
    return "\n".join([*lines, *_command(submission, folder, python), ""])


def format_walltime(walltime_s: float) -> str:
    """Return a time as ``HH:MM:SS`` with any number of hours, rounded up.

    Raises:
        InvalidInput: it is not a finite time above zero.
    """
    check_walltime(walltime_s)
    return format_clock(walltime_s)


def _resources(resources: ResourceSpec, flavour: PbsFlavour) -> list[str]:
    """Return the items of ``-l``. Memory is per chunk in PBS Professional and per job in Torque."""
    cores = (resources.cores_per_task or 1) * resources.tasks_per_node
    mebibytes = None if resources.memory_bytes_per_node is None else math.ceil(resources.memory_bytes_per_node / MIB)
    if flavour is PbsFlavour.PRO:
        chunk = [f"select={resources.nodes}", f"ncpus={cores}", f"mpiprocs={resources.tasks_per_node}"]
        chunk += [f"ngpus={resources.gpus_per_node}"] if resources.gpus_per_node else []
        chunk += [f"mem={mebibytes}mb"] if mebibytes is not None else []
        items = [":".join(chunk)]
    else:
        chunk = [f"nodes={resources.nodes}", f"ppn={cores}"]
        chunk += [f"gpus={resources.gpus_per_node}"] if resources.gpus_per_node else []
        items = [":".join(chunk)] + ([f"mem={mebibytes * resources.nodes}mb"] if mebibytes is not None else [])
    return items if resources.walltime_s is None else [*items, f"walltime={format_walltime(resources.walltime_s)}"]


def _array(submission: Submission, flavour: PbsFlavour) -> str:
    """Return an array's indices: a list for Torque, one range of at least two for PBS Professional."""
    indices, limit = sorted(submission.indices), f"%{submission.most}" if submission.most else ""
    if indices[0] < 0:
        raise InvalidInput("array indices must be whole numbers from 0")
    if flavour is PbsFlavour.TORQUE:
        return ",".join(map(str, indices)) + limit
    steps = {later - earlier for earlier, later in pairwise(indices)}
    if len(steps) == 1:
        (step,) = steps
        return f"{indices[0]}-{indices[-1]}" + (f":{step}" if step > 1 else "") + limit
    # PBS Professional rejects a range of one index.
    last = max(indices[-1], indices[0] + 1)
    if last - indices[0] >= max(SPARSE * len(indices), 2):
        raise InvalidInput(
            f"PBS accepts one range of indices, but {len(indices)} between {indices[0]} and {indices[-1]} have too "
            "many gaps: submit them as several arrays"
        )
    return f"{indices[0]}-{last}{limit}"


def _depend(submission: Submission, flavour: PbsFlavour) -> str:
    """Return the dependencies. Torque has separate kinds for whole arrays."""
    kind, arrays = submission.after_kind.value, [job_id for job_id in submission.after if "[]" in job_id]
    if flavour is PbsFlavour.PRO or not arrays:
        return ":".join([kind, *(_checked("-W", job_id.replace("[]", "")) and job_id for job_id in submission.after)])
    single = [job_id for job_id in submission.after if "[]" not in job_id]
    parts = [":".join([f"{kind}array", *arrays])] + ([":".join([kind, *single])] if single else [])
    return ",".join(parts)


def _identity_lines(submission: Submission) -> list[str]:
    """Return the lines that export a job's index and key."""
    restarts = exports(submission.restart_variables)
    if not submission.indices:
        return [f"export LEADLINE_KEY={submission.key}", *restarts]
    pattern, key = "|".join(map(str, submission.indices)), element_key(submission.key, "$LEADLINE_INDEX")
    return [
        "export LEADLINE_INDEX=${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-$SLURM_ARRAY_TASK_ID}}",
        "export SLURM_ARRAY_TASK_ID=$LEADLINE_INDEX",
        f'case "$LEADLINE_INDEX" in {pattern}) export LEADLINE_KEY={key} ;; *) exit 0 ;; esac',
        *restarts,
    ]


def _command(submission: Submission, folder: PurePosixPath, python: str) -> list[str]:
    """Run the command once: measured in the shell's place if Leadline is installed, else by the shell."""
    spec = submission.spec
    plain = [f"cd -- {shlex.quote(spec.workdir)} || exit 127"] if spec.workdir else []
    plain += run_once_script(shlex.join(command_with_setup(spec)), folder)
    if not submission.measured:
        if submission.held:
            raise InvalidInput("an unmeasured command cannot be held back: measure it, or submit a single copy")
        return plain
    # The wrapper expands the variable inside the job.
    result = Path(folder, RUNS_FOLDER, "${LEADLINE_KEY}.json")
    options = submission.wrapper_options(str(Path(folder, RUNS_FOLDER, release_file_name("${LEADLINE_KEY}"))))
    options["--once"] = True
    if spec.resources.walltime_s is not None:
        # A site limits jobs to whole minutes.
        options["--site-walltime-s"] = math.ceil(spec.resources.walltime_s / MINUTE_S) * float(MINUTE_S)
    unheld = [
        "echo 'leadline is not installed here: a copy of a job cannot be held, and does not begin'",
        f"exit {EXIT_NEVER_BEGAN}",
    ]
    wrapper = shlex.join([python, "-P", "-m", WRAPPER])
    arguments = shlex.join(wrapper_arguments(spec, result, options))
    return [
        f"if {wrapper} --version >/dev/null 2>&1; then",
        f"  exec {wrapper} {arguments}",
        "fi",
        *(unheld if submission.held else ["echo 'leadline is not installed here: the job runs unmeasured'", *plain]),
    ]


def _checked(option: str, value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise InvalidInput(
            f"{value!r} cannot be the value of {option}: it contains a space, a quote or another special character"
        )
    return value

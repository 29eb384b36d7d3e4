"""Write what a job is handed to qsub as: options for its flavour of PBS, and the script; pure text."""

import math
import re
import shlex
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePosixPath

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.units import HOUR_S, MIB, MINUTE_S
from leadline.execution.launch import (
    WRAPPER,
    LaunchOptions,
    command_with_setup,
    job_environment,
    option_arguments,
    wrapper_arguments,
)
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, log_name, run_once_script
from leadline.execution.schedulers.port import Submission, element_key
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, release_file_name

MAX_NAME_LENGTH = 63
"""Characters of a job's name: PBS Professional 14 and Torque 4 take more, older ones 15."""
SPARSE = 4
"""A range of indices may be so many times as long as what is wanted of it; the rest ends at once."""
_KEY = re.compile(r"[A-Za-z0-9._-]{1,40}")
_TOKEN = re.compile(r"[A-Za-z0-9@._+:/-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PbsFlavour(StrEnum):
    """Which words a PBS understands."""

    PRO = "pro"
    """PBS Professional and OpenPBS: chunks (``select=2:ncpus=8``), ``-J``, a history (``qstat -x``), JSON."""
    TORQUE = "torque"
    """Torque, and what imitates it: ``nodes=2:ppn=8``, ``-t``."""


def qsub_options(submission: Submission, flavour: PbsFlavour, output: PurePosixPath) -> list[str]:
    """Return the options of qsub; ``output`` takes what PBS itself has to say.

    ``-l`` stands there once, for not every qsub adds up several, and ``-r n`` because what is made again is made again
    as an attempt of its own.

    Raises:
        InvalidInput: a value cannot be handed to qsub, or an array's indices cannot be.
    """
    spec = submission.spec
    words = ["-N", job_name(spec.name, submission.key), "-l", ",".join(_resources(spec.resources, flavour))]
    for option, value in (("-q", spec.partition), ("-A", spec.account)):
        if value is not None:
            words += [option, _checked(option, value)]
    if submission.indices:
        words += ["-J" if flavour is PbsFlavour.PRO else "-t", _array(submission, flavour)]
    if submission.after:
        words += ["-W", f"depend={_depend(submission, flavour)}"]
    return [*words, "-r", "n", "-j", "oe", "-o", _checked("-o", str(output))]


def job_name(name: str, key: str) -> str:
    """Return a name that begins with a letter, and holds after a dot the key by which the job is found again.

    Raises:
        InvalidInput: the key holds what a name may not.
    """
    if not _KEY.fullmatch(key):
        raise InvalidInput(f"{key!r} cannot be a job's key: use up to 40 letters, digits, dots, dashes and underscores")
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}".rstrip("-")
    return f"{plain[: MAX_NAME_LENGTH - 1 - len(key)]}.{key}"


def job_script(submission: Submission, folder: PurePosixPath, *, python: str) -> str:
    """Return the script: the job's variables, and its command measured.

    The command runs once, on the job's first node, where it may start its own ranks (``mpirun`` reads
    ``PBS_NODEFILE``). Outcome and output go to ``folder``/runs under the attempt's key. An element of the array's range
    that is not wanted ends at once. ``python`` is an interpreter of the nodes that has Leadline.

    Raises:
        InvalidInput: there is no command, or a variable's name or the key cannot be one.
    """
    spec = submission.spec
    if not spec.command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    job_name("", submission.key)
    runs = shlex.quote(str(folder / RUNS_FOLDER))
    lines = ["#!/bin/bash", *_which(submission), *_exports(spec)]
    lines += [] if spec.workdir else ['cd -- "${PBS_O_WORKDIR:-.}"']  # PBS begins in the home folder
    lines += [f"mkdir -p {runs}", f'exec >> {runs}/"{log_name("$LEADLINE_KEY")}" 2>&1']
    return "\n".join([*lines, *_command(submission, folder, python), ""])


def format_walltime(walltime_s: float) -> str:
    """Write a time as PBS does, ``HH:MM:SS`` with as many hours as it takes, rounded up.

    Raises:
        InvalidInput: it is no limit.
    """
    if not walltime_s > 0 or math.isinf(walltime_s):
        raise InvalidInput(f"a walltime of {walltime_s} s cannot be asked for: name a finite time above zero")
    seconds = math.ceil(walltime_s)
    return f"{seconds // HOUR_S:02d}:{seconds % HOUR_S // MINUTE_S:02d}:{seconds % MINUTE_S:02d}"


def _resources(asked: ResourceSpec, flavour: PbsFlavour) -> list[str]:
    """Return the items of ``-l``; memory counts by chunk in PBS Professional and by job in Torque."""
    cores = (asked.cores_per_task or 1) * asked.tasks_per_node
    mebibytes = None if asked.memory_bytes_per_node is None else math.ceil(asked.memory_bytes_per_node / MIB)
    if flavour is PbsFlavour.PRO:
        chunk = [f"select={asked.nodes}", f"ncpus={cores}", f"mpiprocs={asked.tasks_per_node}"]
        chunk += [f"ngpus={asked.gpus_per_node}"] if asked.gpus_per_node else []
        chunk += [f"mem={mebibytes}mb"] if mebibytes is not None else []
        items = [":".join(chunk)]
    else:
        chunk = [f"nodes={asked.nodes}", f"ppn={cores}"]
        chunk += [f"gpus={asked.gpus_per_node}"] if asked.gpus_per_node else []
        items = [":".join(chunk)] + ([f"mem={mebibytes * asked.nodes}mb"] if mebibytes is not None else [])
    return items if asked.walltime_s is None else [*items, f"walltime={format_walltime(asked.walltime_s)}"]


def _array(submission: Submission, flavour: PbsFlavour) -> str:
    """Return an array's indices: Torque takes a list, PBS Professional one range of at least two."""
    indices, most = sorted(submission.indices), f"%{submission.most}" if submission.most else ""
    if indices[0] < 0:
        raise InvalidInput("the indices of an array are whole numbers from 0 on")
    if flavour is PbsFlavour.TORQUE:
        return ",".join(map(str, indices)) + most
    steps = {later - earlier for earlier, later in pairwise(indices)}
    if len(steps) == 1:
        (step,) = steps
        return f"{indices[0]}-{indices[-1]}" + (f":{step}" if step > 1 else "") + most
    last = max(indices[-1], indices[0] + 1)
    if last - indices[0] >= max(SPARSE * len(indices), 2):
        raise InvalidInput(
            f"PBS takes one range of indices, and {len(indices)} between {indices[0]} and {indices[-1]} lie too far "
            "apart: submit them as several arrays"
        )
    return f"{indices[0]}-{last}{most}"


def _depend(submission: Submission, flavour: PbsFlavour) -> str:
    """Return what must have become of which jobs; Torque has words of its own for whole arrays."""
    kind, whole = submission.after_kind.value, [one for one in submission.after if "[]" in one]
    if flavour is PbsFlavour.PRO or not whole:
        return ":".join([kind, *(_checked("-W", one.replace("[]", "")) and one for one in submission.after)])
    single = [one for one in submission.after if "[]" not in one]
    parts = [":".join([f"{kind}array", *whole])] + ([":".join([kind, *single])] if single else [])
    return ",".join(parts)


def _which(submission: Submission) -> list[str]:
    """Return the lines that tell a job its index and its key."""
    if not submission.indices:
        return [f"export LEADLINE_KEY={submission.key}"]
    wanted, key = "|".join(map(str, submission.indices)), element_key(submission.key, "$LEADLINE_INDEX")
    return [
        "export LEADLINE_INDEX=${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-$SLURM_ARRAY_TASK_ID}}",
        "export SLURM_ARRAY_TASK_ID=$LEADLINE_INDEX",
        f'case "$LEADLINE_INDEX" in {wanted}) export LEADLINE_KEY={key} ;; *) exit 0 ;; esac',
    ]


def _exports(spec: JobSpec) -> list[str]:
    lines = []
    for name, value in job_environment(spec).items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot be an environment variable: use letters, digits and underscores")
        lines.append(f"export {name}={shlex.quote(value)}")
    return lines


def _command(submission: Submission, folder: PurePosixPath, python: str) -> list[str]:
    """Run the command once: in the shell's place and measured where Leadline is installed, and by the shell else."""
    spec = submission.spec
    if any("\0" in word for word in spec.command):
        raise InvalidInput("the command holds a NUL character, which no program can be given: remove it")
    plain = [f"cd -- {shlex.quote(spec.workdir)} || exit 127"] if spec.workdir else []
    plain += run_once_script(shlex.join(command_with_setup(spec)), folder)
    if not submission.measured:
        if submission.held:
            raise InvalidInput("a command that is not measured cannot be held back: measure it, or submit it once")
        return plain
    result = Path(folder, RUNS_FOLDER, "${LEADLINE_KEY}.json")  # the wrapper expands it, inside the job
    word = str(Path(folder, RUNS_FOLDER, release_file_name("${LEADLINE_KEY}"))) if submission.held else None
    terms = LaunchOptions(warning=submission.checkpoint_signal, warning_s=submission.checkpoint_s, release_file=word)
    unheld = [
        "echo 'leadline is not installed here: a copy of a job cannot be held, and does not begin'",
        f"exit {EXIT_NEVER_BEGAN}",
    ]
    measurer = shlex.join([python, "-P", "-m", WRAPPER])
    words = shlex.join(["--once", *option_arguments(terms), *wrapper_arguments(spec, result, at_a_site=True)])
    return [
        f"if {measurer} --version >/dev/null 2>&1; then",
        f"  exec {measurer} {words}",
        "fi",
        *(unheld if submission.held else ["echo 'leadline is not installed here: the job runs unmeasured'", *plain]),
    ]


def _checked(option: str, value: str) -> str:
    if not _TOKEN.fullmatch(value):
        raise InvalidInput(f"{value!r} cannot be the value of {option}: it holds a space, a quote or another sign")
    return value

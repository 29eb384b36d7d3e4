"""Write the sbatch command line and the batch script of a submission."""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec
from leadline.core.systems import Partition, SubmitRules
from leadline.execution.launch import job_environment, limit_arguments
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, log_name, run_once_script
from leadline.execution.schedulers.port import RequestRefused, Submission, element_key
from leadline.execution.schedulers.slurm.parsing import format_ranges
from leadline.execution.schedulers.slurm.script import (
    WRAPPER_MODULE,
    directives,
    needs_launcher,
    script_prologue,
    whole_minutes_s,
)
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN

GATE = "leadline.execution.wrapper.gate"
LONGEST_WARNING_S = 65535
"""Slurm's limit for the time of a signal before the end."""
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_SIGNAL = re.compile(r"(?:SIG)?([A-Z][A-Z0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class ClusterPython:
    """An interpreter of the cluster with Leadline, and a file that shows a job if its node has it too."""

    python: str
    file: str


def sbatch_arguments(submission: Submission, partition: Partition | None, folder: PurePosixPath) -> list[str]:
    """Return ``sbatch`` with its options.

    They are on the command line, because a user's SBATCH_ variables override those in a script.

    Raises:
        InvalidInput: a value is not possible, exceeds the partition's limits, or is required but missing.
    """
    check_key(submission)
    options = directives(submission.spec, partition, key=submission.key)
    rejected = partition.rules.rejects if partition else ()
    log = log_name(element_key(submission.key, "%a") if submission.is_array else submission.key)
    options["--output"] = f"{str(folder).replace('%', '%%')}/{RUNS_FOLDER}/{log}"
    # sbatch would otherwise use the folder from which the plane happens to run.
    options["--chdir"] = str(folder)
    options["--open-mode"] = "append"
    if submission.checkpoint_signal:
        options["--signal"] = _signal(submission)
    # Only the wrapper of a single job handles the default warning.
    elif submission.is_array or not submission.measured:
        options.pop("--signal", None)
    if submission.is_array:
        limit = f"%{submission.most}" if submission.most else ""
        options["--array"] = f"{format_ranges(submission.indices)}{limit}"
    if submission.after:
        options["--dependency"] = ":".join([submission.after_kind.value, *submission.after])
        # Otherwise Slurm keeps a job whose dependency failed in the queue for ever.
        options["--kill-on-invalid-dep"] = "yes"
    arguments = [f"{name}={value}" for name, value in options.items() if name not in rejected]
    # A retry is a new attempt with its own key and outcome, so Slurm must not requeue.
    return ["sbatch", "--parsable", "--no-requeue", *arguments]


def batch_script(
    submission: Submission, partition: Partition | None, folder: PurePosixPath, cluster_python: ClusterPython | None
) -> str:
    """Return the script, which runs the command only once even if a restarted controller starts the job again.

    The command is measured if the node has Leadline, which takes no extra process to check. With a launcher, each task
    is measured.

    Raises:
        InvalidInput: the command or a variable cannot stand in a script.
        RequestRefused: the job is held, but Leadline is missing.
    """
    spec = replace(submission.spec, environment=job_environment(submission.spec))
    if not spec.command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    elements = [replace(element, environment=job_environment(element)) for element in submission.specs]
    if any("\0" in word for each in (spec, *elements) for word in _words(each)):
        raise InvalidInput("the command contains a NUL character: remove it")
    rules = partition.rules if partition else SubmitRules()
    launcher = f"{rules.launcher} " if needs_launcher(spec.resources) else ""
    command = '"$@"' if elements else shlex.join(spec.command)
    prologue = _own_prologues(submission.indices, elements) if elements else script_prologue(spec)
    lines = ["#!/bin/bash", _key_line(submission), *_gate(submission, folder, cluster_python), *prologue]
    if submission.measured and cluster_python is not None:
        python = shlex.quote(cluster_python.python)
        options = _wrapper_options(submission, folder, by_task=bool(launcher))
        lines += [
            f"if [ -x {python} ] && [ -r {shlex.quote(cluster_python.file)} ]; then",
            f"  exec {launcher}{python} -P -m {WRAPPER_MODULE} {options} -- {command}",
            "fi",
        ]
    if submission.measured:
        lines.append("echo 'leadline is not installed here: the job runs unmeasured' >&2")
    # Without a launcher, the signal to the batch shell must reach the command itself.
    in_place = bool(submission.checkpoint_signal and not launcher)
    return "\n".join([*lines, *run_once_script(f"{launcher}{command}", folder, in_place=in_place), ""])


def _own_prologues(indices: tuple[int, ...], elements: list[JobSpec]) -> list[str]:
    """Return the lines that prepare each element of an array: its set-up, its limits and its command."""
    lines = ['case "$SLURM_ARRAY_TASK_ID" in']
    for index, element in zip(indices, elements, strict=True):
        limits = limit_arguments(element.resources)
        command = f"set -- {shlex.join(element.command)}"
        lines += [f"{index})", *script_prologue(element), f"limits={shlex.quote(' '.join(limits))}", command, ";;"]
    return [*lines, "esac"]


def _words(spec: JobSpec) -> tuple[str, ...]:
    return (*spec.command, *spec.setup, *spec.environment.values(), spec.workdir or "")


def result_names(key: str) -> tuple[str, str]:
    """Return the outcome files of an attempt: its own, and that of the first launched task."""
    return f"{key}.json", f"{key}.0.json"


def check_key(submission: Submission) -> None:
    """Check that a key can be part of a name."""
    if not _KEY.fullmatch(submission.key):
        raise InvalidInput(
            f"{submission.key!r} cannot be a key: use up to 48 letters, digits, dots, dashes and underscores"
        )


def _key_line(submission: Submission) -> str:
    """Return the line that exports the attempt's key, and an array element's index."""
    if not submission.is_array:
        return f"export LEADLINE_KEY={submission.key}"
    key = element_key(submission.key, "$SLURM_ARRAY_TASK_ID")
    return f"export LEADLINE_INDEX=$SLURM_ARRAY_TASK_ID LEADLINE_KEY={key}"


def _gate(submission: Submission, folder: PurePosixPath, cluster_python: ClusterPython | None) -> list[str]:
    """Return the lines that hold a copy back until it is released, before anything of the job runs.

    The warning signal must not end the shell meanwhile.

    Raises:
        RequestRefused: Leadline is missing there.
    """
    if not submission.held:
        return []
    if cluster_python is None or not submission.measured:
        raise RequestRefused("copies of a job need Leadline on their nodes, but it is not installed there")
    python, runs = shlex.quote(cluster_python.python), shlex.quote(f"{folder}/{RUNS_FOLDER}")
    return [
        f"if ! [ -x {python} ] || ! [ -r {shlex.quote(cluster_python.file)} ]; then",
        "  echo 'leadline is not installed here: a copy of a job cannot be held, and does not begin' >&2",
        f"  exit {EXIT_NEVER_BEGAN}",
        "fi",
        # Until the release, the default action of a warning would end the shell.
        "trap '' USR1 USR2",
        f'{python} -P -m {GATE} {runs}/"$LEADLINE_KEY".word {runs}/"$LEADLINE_KEY".json || exit {EXIT_NEVER_BEGAN}',
        "trap - USR1 USR2",
    ]


def _wrapper_options(submission: Submission, folder: PurePosixPath, *, by_task: bool) -> str:
    # In single quotes: the rank is only known inside each task, where the wrapper expands it.
    task = "'.${SLURM_PROCID}'" if by_task else ""
    options = [f'--once --result {shlex.quote(f"{folder}/{RUNS_FOLDER}")}/"$LEADLINE_KEY"{task}.json']
    if submission.held:
        options.append('--since-s "$SECONDS"')
    if submission.spec.watched:
        options.append("--probe-hook")
    if submission.specs:
        options.append("$limits")
    if submission.spec.resources.walltime_s:
        options.append(f"--site-walltime-s {whole_minutes_s(submission.spec.resources.walltime_s)}")
    return " ".join(options)


def _signal(submission: Submission) -> str:
    """Return the warning: for the batch shell, which the command replaces, or for all launched tasks."""
    match = _SIGNAL.fullmatch(submission.checkpoint_signal or "")
    if match is None:
        raise InvalidInput(f"{submission.checkpoint_signal!r} cannot be a signal: name one, for example USR1")
    before_s = min(max(round(submission.checkpoint_s), 1), LONGEST_WARNING_S)
    return f"{'' if needs_launcher(submission.spec.resources) else 'B:'}{match[1]}@{before_s}"

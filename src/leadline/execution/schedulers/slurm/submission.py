"""Write what a submission is handed to sbatch as: its options as words of the command line, its script on the input."""

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput
from leadline.core.systems import Partition, SubmitRules
from leadline.execution.launch import job_environment
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
"""Slurm sends no signal earlier than this before a limit."""
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_SIGNAL = re.compile(r"(?:SIG)?([A-Z][A-Z0-9]{1,7})")


@dataclass(frozen=True, slots=True)
class ClusterPython:
    """A Python of the cluster that has Leadline, and the file by which a job sees that its node has it too."""

    python: str
    file: str


def sbatch_arguments(submission: Submission, partition: Partition | None, folder: PurePosixPath) -> list[str]:
    """Return ``sbatch`` with its options: on the command line, for a user's SBATCH_ variables overrule a script's.

    Raises:
        InvalidInput: a value cannot be asked for, is beyond the partition's limits, or is missing though the site
            demands it.
    """
    check_key(submission)
    options = directives(submission.spec, partition, key=submission.key)
    rejected = partition.rules.rejects if partition else ()
    said = log_name(element_key(submission.key, "%a") if submission.is_array else submission.key)
    options["--output"] = f"{str(folder).replace('%', '%%')}/{RUNS_FOLDER}/{said}"
    options["--chdir"] = str(folder)
    options["--open-mode"] = "append"
    if submission.checkpoint_signal:
        options["--signal"] = _signal(submission)
    elif submission.is_array or not submission.measured:
        options.pop("--signal", None)
    if submission.is_array:
        most = f"%{submission.most}" if submission.most else ""
        options["--array"] = f"{format_ranges(submission.indices)}{most}"
    if submission.after:
        options["--dependency"] = ":".join([submission.after_kind.value, *submission.after])
        options["--kill-on-invalid-dep"] = "yes"
    words = [f"{name}={value}" for name, value in options.items() if name not in rejected]
    # What ended is made again as an attempt of its own, with its own key and its own outcome.
    return ["sbatch", "--parsable", "--no-requeue", *words]


def batch_script(
    submission: Submission, partition: Partition | None, folder: PurePosixPath, measurer: ClusterPython | None
) -> str:
    """Return the script, which runs the command once: a controller that was killed may start again what it forgot of.

    It is measured where the node has Leadline, which costs no process to find out; a launched one by each task.

    Raises:
        InvalidInput: the command or a variable cannot stand in a script.
        Refused: it is to be held, and there is no Leadline to do it.
    """
    spec = replace(submission.spec, environment=job_environment(submission.spec))
    if not spec.command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    if any("\0" in word for word in (*spec.command, *spec.setup, *spec.environment.values(), spec.workdir or "")):
        raise InvalidInput("the command holds a NUL character, which no program can be given: remove it")
    rules = partition.rules if partition else SubmitRules()
    launcher = f"{rules.launcher} " if needs_launcher(spec.resources) else ""
    command = shlex.join(spec.command)
    lines = ["#!/bin/bash", _key_line(submission), *_gate(submission, folder, measurer), *script_prologue(spec)]
    if submission.measured and measurer is not None:
        python = shlex.quote(measurer.python)
        options = _wrapper_options(submission, folder, by_task=bool(launcher))
        lines += [
            f"if [ -x {python} ] && [ -r {shlex.quote(measurer.file)} ]; then",
            f"  exec {launcher}{python} -P -m {WRAPPER_MODULE} {options} -- {command}",
            "fi",
        ]
    if submission.measured:
        lines.append("echo 'leadline is not installed here: the job runs unmeasured' >&2")
    # A warning for the batch shell is to reach a command that nobody launched.
    warned = bool(submission.checkpoint_signal and not launcher)
    return "\n".join([*lines, *run_once_script(f"{launcher}{command}", folder, in_place=warned), ""])


def result_names(key: str) -> tuple[str, str]:
    """Return the files that an attempt's outcome may be in: its own, and that of the first task of a launched one."""
    return f"{key}.json", f"{key}.0.json"


def check_key(submission: Submission) -> None:
    """Refuse a key that could not stand in a name."""
    if not _KEY.fullmatch(submission.key):
        raise InvalidInput(
            f"{submission.key!r} cannot be a key: use up to 48 letters, digits, dots, dashes and underscores"
        )


def _key_line(submission: Submission) -> str:
    """Return the line that tells an attempt its key, and an element of an array its index too."""
    if not submission.is_array:
        return f"export LEADLINE_KEY={submission.key}"
    key = element_key(submission.key, "$SLURM_ARRAY_TASK_ID")
    return f"export LEADLINE_INDEX=$SLURM_ARRAY_TASK_ID LEADLINE_KEY={key}"


def _gate(submission: Submission, folder: PurePosixPath, measurer: ClusterPython | None) -> list[str]:
    """Return the lines that hold a copy back until the plane lets it begin, before anything of the job's own.

    A warning of the limit must not end the shell meanwhile.

    Raises:
        Refused: nothing could hold it there.
    """
    if not submission.held:
        return []
    if measurer is None or not submission.measured:
        raise RequestRefused(
            "copies of a job need Leadline where they run, to hold them back, and it is not installed there"
        )
    python, runs = shlex.quote(measurer.python), shlex.quote(f"{folder}/{RUNS_FOLDER}")
    return [
        f"if ! [ -x {python} ] || ! [ -r {shlex.quote(measurer.file)} ]; then",
        "  echo 'leadline is not installed here: a copy of a job cannot be held, and does not begin' >&2",
        f"  exit {EXIT_NEVER_BEGAN}",
        "fi",
        "trap '' USR1 USR2",
        f'{python} -P -m {GATE} {runs}/"$LEADLINE_KEY".word {runs}/"$LEADLINE_KEY".json || exit {EXIT_NEVER_BEGAN}',
        "trap - USR1 USR2",
    ]


def _wrapper_options(submission: Submission, folder: PurePosixPath, *, by_task: bool) -> str:
    # In single quotes: the wrapper expands it itself, inside each task, where alone the rank is known.
    task = "'.${SLURM_PROCID}'" if by_task else ""
    words = [f'--once --result {shlex.quote(f"{folder}/{RUNS_FOLDER}")}/"$LEADLINE_KEY"{task}.json']
    if submission.held:
        words.append('--since-s "$SECONDS"')
    if submission.spec.watched:
        words.append("--probe-hook")
    if submission.spec.resources.walltime_s:
        words.append(f"--site-walltime-s {whole_minutes_s(submission.spec.resources.walltime_s)}")
    return " ".join(words)


def _signal(submission: Submission) -> str:
    """Return the warning: to the script, in whose place the command stands; to all tasks of a launched one."""
    match = _SIGNAL.fullmatch(submission.checkpoint_signal or "")
    if match is None:
        raise InvalidInput(f"{submission.checkpoint_signal!r} cannot be a signal: name one, for example USR1")
    before_s = min(max(round(submission.checkpoint_s), 1), LONGEST_WARNING_S)
    return f"{'' if needs_launcher(submission.spec.resources) else 'B:'}{match[1]}@{before_s}"

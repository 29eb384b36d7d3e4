"""Write the sbatch command line and the batch script of a submission, by the site's submit rules."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import Partition, SubmitRules
from leadline.core.units import MIB, MINUTE_S, format_bytes, format_clock, format_duration
from leadline.execution.launch import WRAPPER, check_command, check_walltime, exports, job_environment, limit_arguments
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, link_line, log_name, run_once_script
from leadline.execution.schedulers.port import RequestRefused, Submission, element_key
from leadline.execution.schedulers.slurm.parsing import format_ranges
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN

GATE = "leadline.execution.wrapper.gate"
LONGEST_WARNING_S = 65535
"""Slurm's limit for the time of a signal before the end."""
WARNING_FROM_S = 10 * MINUTE_S
"""Shorter jobs get no warning before the limit, because it would cost too much of their time."""

_LONG = {
    "-A": "--account", "-C": "--constraint", "-c": "--cpus-per-task", "-G": "--gpus", "-J": "--job-name",
    "-N": "--nodes", "-n": "--ntasks", "-o": "--output", "-p": "--partition", "-q": "--qos", "-t": "--time",
    "--tasks-per-node": "--ntasks-per-node",
}  # fmt: skip
_FIX = {
    "--account": "name the project to charge with --account",
    "--time": "set the time limit with --time, for example --time 2h",
    "--mem": "set the memory with --memory, for example --memory 16G",
    "--cpus-per-task": "set the number of cores with --cores",
    **dict.fromkeys(("--gpus-per-node", "--gpus", "--gres"), "set the number of GPUs with --gpus"),
}
_TOKEN = re.compile(r"[^\s'\"\\#`$;]+")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_SIGNAL = re.compile(r"(?:SIG)?([A-Z][A-Z0-9]{1,7})")


class ClusterPython(Frozen):
    """An interpreter of the cluster with Leadline, and a file that shows a job if its node has it too."""

    python: str
    file: str


def sbatch_arguments(
    submission: Submission, partition: Partition | None, folder: PurePosixPath, *, wishes: Mapping[str, str] = {}
) -> list[str]:
    """Return ``sbatch`` with its options.

    They are on the command line, because a user's SBATCH_ variables override those in a script. ``wishes`` are options
    that count where the job has none.

    Raises:
        InvalidInput: a value is not possible, exceeds the partition's limits, or is required but missing.
    """
    options = _submission_options(submission, partition, wishes)
    log = log_name(element_key(submission.key, "%a") if submission.indices else submission.key)
    options["--output"] = f"{str(folder).replace('%', '%%')}/{RUNS_FOLDER}/{log}"
    # sbatch would otherwise use the folder from which the plane happens to run.
    options |= {"--chdir": str(folder), "--open-mode": "append"}
    rejected = _long_names(_rules(partition).rejects)
    arguments = [f"{name}={value}" for name, value in options.items() if name not in rejected]
    # A retry is a new attempt with its own key and outcome, so Slurm must not requeue.
    return ["sbatch", "--parsable", "--no-requeue", *arguments]


def batch_script(
    submission: Submission, partition: Partition | None, folder: PurePosixPath, cluster_python: ClusterPython | None,
    *, wishes: Mapping[str, str] = {},
) -> str:  # fmt: skip
    """Return the script, which runs the command only once even if a restarted controller starts the job again.

    The command is measured if the node has Leadline, which takes no extra process to check. With a launcher, each task
    is measured.

    Raises:
        InvalidInput: the request is not possible (see ``sbatch_arguments``), or a word cannot stand in a script.
        RequestRefused: the job is held, but Leadline is missing.
    """
    spec = replace(submission.spec, environment=job_environment(submission.spec))
    elements = [replace(element, environment=job_environment(element)) for element in submission.specs]
    for each in (spec, *elements):
        check_command(each)
    # The key is in the command line only, so that the same script may also be submitted by hand, any number of times.
    name = _job_name(spec.name, submission.key).removesuffix(f"-{submission.key}")
    options = {**_submission_options(submission, partition, wishes), "--job-name": name}
    options.pop("--comment", None)
    rules = _rules(partition)
    launcher = f"{rules.launcher} " if _needs_launcher(spec.resources) else ""
    command = '"$@"' if elements else shlex.join(spec.command)
    prologue = _element_prologues(submission.indices, elements) if elements else _prologue(spec)
    warning = (submission.checkpoint_signal or "TERM").removeprefix("SIG")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}={value}" for option, value in options.items())]
    lines += [f"# {' '.join(note.split())}" for note in rules.notes]
    # Slurm may warn up to a minute early. Until the wrapper or a trap below is there, that would end the shell.
    lines += ["", f"trap '' {' '.join(sorted({warning, 'USR1', 'USR2'} - {'TERM'}))}"]
    lines += [*_key_lines(submission, name), *_gate(submission, folder, cluster_python), *prologue]
    if submission.link and spec.workdir:
        job_id = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if submission.indices else "$SLURM_JOB_ID"
        lines.append(link_line(folder, f'"slurm-{job_id}.out"'))
    if submission.measured and cluster_python is not None:
        python = shlex.quote(cluster_python.python)
        arguments = _wrapper_arguments(submission, folder, by_task=bool(launcher))
        lines += [
            f"if [ -x {python} ] && [ -r {shlex.quote(cluster_python.file)} ]; then",
            f"  exec {launcher}{python} -P -m {WRAPPER} {arguments} -- {command}",
            "fi",
        ]
    if submission.measured:
        lines.append("echo 'leadline is not installed here: the job runs unmeasured' >&2")
    # At a job's end Slurm signals the tasks of a launcher, but without one only the batch shell.
    forwarded = [] if launcher else sorted({warning, "TERM"})
    return "\n".join([*lines, *run_once_script(f"{launcher}{command}", folder, forwarded=forwarded), ""])


def directives(spec: JobSpec, partition: Partition | None = None, *, key: str = "") -> dict[str, str]:
    """Return the options of ``spec`` by their long names; unknown rules (None) demand nothing.

    ``key`` becomes part of the job's name and comment, to find the job again.

    Raises:
        InvalidInput: a value cannot stand in a script, exceeds the partition's limits, or is required but missing.
    """
    rules = _rules(partition)
    if partition:
        _check_limits(spec.resources, partition)
    options = _options(spec, partition, rules, key)
    place = ":".join(part for part in (spec.system, partition.name if partition else spec.partition) if part)
    for name in (_LONG.get(name, name) for name in rules.requires):
        if name not in options:
            fix = _FIX.get(name, "Leadline does not know its value; add it to the script by hand")
            raise InvalidInput(f"{place or 'it'} accepts no job without {name}: {fix}")
    return options


def _submission_options(
    submission: Submission, partition: Partition | None, wishes: Mapping[str, str]
) -> dict[str, str]:
    """Return the options of a submission that the command line and the script share."""
    if not _KEY.fullmatch(submission.key):
        raise InvalidInput(
            f"{submission.key!r} cannot be a key: use up to 48 letters, digits, dots, dashes and underscores"
        )
    options = directives(submission.spec, partition, key=submission.key)
    rejected = _long_names(_rules(partition).rejects)
    options |= {name: _token(name, wishes[name]) for name in wishes.keys() - options.keys() - rejected}
    if submission.checkpoint_signal:
        options["--signal"] = _signal(submission)
    # Only the wrapper of a single job handles the default warning.
    elif submission.indices or not submission.measured:
        options.pop("--signal", None)
    if submission.indices:
        limit = f"%{submission.most}" if submission.most else ""
        options["--array"] = f"{format_ranges(submission.indices)}{limit}"
    if submission.after:
        options["--dependency"] = ":".join([submission.after_kind.value, *submission.after])
        # Otherwise Slurm keeps a job whose dependency failed in the queue for ever.
        options["--kill-on-invalid-dep"] = "yes"
    return options


def _check_limits(resources: ResourceSpec, partition: Partition) -> None:
    """Refuse requests that the scheduler would refuse or leave pending for ever."""
    node, limits = partition.node, partition.limits
    cores = (resources.cores_per_task or 1) * resources.tasks_per_node
    # A node with a GPU model but without a count has an unknown number of GPUs.
    gpus = None if node.device and not node.gpus else node.gpus
    memory = node.usable_memory_bytes or node.memory_bytes
    requests: list[tuple[str, float, float | None, Callable[[float], str]]] = [
        ("GPUs a node", resources.gpus_per_node, gpus, str),
        ("cores a node", cores, node.cores, str),
        ("memory a node", resources.memory_bytes_per_node or 0, memory, format_bytes),
        ("nodes", resources.nodes, limits.max_nodes, str),
        ("cores", cores * resources.nodes, limits.max_cores, str),
        ("GPUs", resources.gpus_per_node * resources.nodes, limits.max_gpus, str),
        ("walltime", resources.walltime_s or 0, limits.max_walltime_s, format_duration),
    ]
    for noun, amount, maximum, format_amount in requests:
        if maximum is not None and amount > maximum:
            raise InvalidInput(
                f"{format_amount(amount)} {noun} are not available in partition {partition.name}: it has at most "
                f"{format_amount(maximum)}; request less or another partition"
            )
    for noun, amount, minimum in (
        ("nodes", resources.nodes, limits.min_nodes),
        ("cores", cores * resources.nodes, limits.min_cores),
    ):
        if minimum is not None and amount < minimum:
            raise InvalidInput(
                f"{amount} {noun} is too few for partition {partition.name}: it needs at least {minimum} {noun}"
            )


def _options(spec: JobSpec, partition: Partition | None, rules: SubmitRules, key: str) -> dict[str, str]:
    """Return the ``#SBATCH`` options in the usual order, without empty and rejected ones."""
    resources = spec.resources
    queue = spec.partition
    if partition is not None:
        queue = partition.name if partition.queue is None else partition.queue
    candidates: dict[str, str | None] = {
        "--job-name": _job_name(spec.name, key),
        "--comment": f"leadline:{key}" if key else None,
        "--account": spec.account,
        "--partition": queue,
        "--qos": rules.qos,
        "--constraint": rules.constraint,
        "--nodes": str(resources.nodes),
        **_tasks(resources, rules),
        "--cpus-per-task": str(resources.cores_per_task) if resources.cores_per_task else None,
        **_gpus(resources, rules),
        **_memory(resources, rules),
        "--time": _walltime(resources.walltime_s),
        "--time-min": _least(resources),
        "--signal": _warning(resources),
        "--output": "%x-%j.out",
    }
    rejected = _long_names(rules.rejects)
    options = {name: value for name, value in candidates.items() if value and name not in rejected}
    return {name: _token(name, value) for name, value in options.items()}


def _token(name: str, value: str) -> str:
    """Return the value of an option if it needs no quoting, else raise ``InvalidInput``."""
    if not _TOKEN.fullmatch(value):
        raise InvalidInput(f"{value!r} cannot be the value of {name}: it contains a space, a quote or a line end")
    return value


def _job_name(name: str, key: str) -> str:
    """Return a name of at most 64 characters that needs no quoting in any listing."""
    # The key stays whole, because the job is found by it.
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "leadline"
    return f"{plain[: 63 - len(key)]}-{key}" if key else plain[:64]


def _tasks(resources: ResourceSpec, rules: SubmitRules) -> dict[str, str]:
    """Request tasks by node, or in total if the site requires it or rejects the other."""
    if "--ntasks" in _long_names(rules.requires) or "--ntasks-per-node" in _long_names(rules.rejects):
        return {"--ntasks": str(resources.tasks_per_node * resources.nodes)}
    return {"--ntasks-per-node": str(resources.tasks_per_node)}


def _gpus(resources: ResourceSpec, rules: SubmitRules) -> dict[str, str]:
    """Request GPUs as the site requires. Without GPUs there is no option, because an empty ``--gres`` fails."""
    if not resources.gpus_per_node or rules.gpu_option is None:
        return {}
    option = rules.gpu_option.format(gpus=resources.gpus_per_node, total=resources.gpus_per_node * resources.nodes)
    name, _, value = option.replace(" ", "=", 1).partition("=")
    return {_LONG.get(name, name): value}


def _memory(resources: ResourceSpec, rules: SubmitRules) -> dict[str, str]:
    """Request memory by node, or by core; on whole nodes all memory belongs to the job."""
    if not resources.memory_bytes_per_node or rules.whole_nodes:
        return {}
    mebibytes = math.ceil(resources.memory_bytes_per_node / MIB)
    # Some sites reject memory per node and only accept it per core.
    if "--mem" in rules.rejects and resources.cores_per_task:
        return {"--mem-per-cpu": f"{math.ceil(mebibytes / (resources.cores_per_task * resources.tasks_per_node))}M"}
    return {"--mem": f"{mebibytes}M"}


def _walltime(walltime_s: float | None) -> str | None:
    """Return the limit in whole minutes."""
    return None if walltime_s is None else format_clock(whole_minutes_s(walltime_s))


def _least(resources: ResourceSpec) -> str | None:
    """Return the shortest limit that Slurm's backfill may give the job; None if it is no shorter."""
    least_s, walltime_s = resources.least_walltime_s, resources.walltime_s
    if least_s is None or walltime_s is None or whole_minutes_s(least_s) >= whole_minutes_s(walltime_s):
        return None
    return _walltime(least_s)


def whole_minutes_s(walltime_s: float) -> int:
    """Return a limit as Slurm counts it, rounded up to whole minutes.

    Raises:
        InvalidInput: it is not a finite time above zero.
    """
    check_walltime(walltime_s)
    return math.ceil(walltime_s / MINUTE_S) * MINUTE_S


def _warning(resources: ResourceSpec) -> str | None:
    """Request SIGUSR1 to the wrapper before the limit: 5 % of the walltime, between one and five minutes."""
    # Only without a launcher does the wrapper replace the batch shell and get the signal.
    if resources.walltime_s is None or resources.walltime_s < WARNING_FROM_S or _needs_launcher(resources):
        return None
    return f"B:USR1@{round(min(max(0.05 * resources.walltime_s, MINUTE_S), 5 * MINUTE_S))}"


def _key_lines(submission: Submission, name: str) -> list[str]:
    """Return the lines that export the attempt's key and an array element's index.

    The key is the end of the job's name. A plug-in of the site may rewrite the name, but not the output file.
    """
    index = '%"-$SLURM_ARRAY_TASK_ID"' if submission.indices else ""
    lines = [
        f"export LEADLINE_KEY=${{SLURM_JOB_NAME#{name}-}}",
        '[ "$LEADLINE_KEY" != "$SLURM_JOB_NAME" ] || LEADLINE_KEY=$SLURM_JOB_ID',
        "output=$(readlink /proc/$$/fd/1 || true)",
        f"case $output in */{RUNS_FOLDER}/*{log_name('')})",
        f"  output=${{output##*/}} output=${{output%{log_name('')}}} LEADLINE_KEY=${{output{index}}} ;;",
        "esac",
    ]
    if submission.indices:
        key = element_key("$LEADLINE_KEY", "$SLURM_ARRAY_TASK_ID")
        lines.append(f"export LEADLINE_INDEX=$SLURM_ARRAY_TASK_ID LEADLINE_KEY={key}")
    return [*lines, *exports(submission.restart_variables)]


def _gate(submission: Submission, folder: PurePosixPath, cluster_python: ClusterPython | None) -> list[str]:
    """Return the lines that hold a copy back until it is released, before anything of the job runs.

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
        f'{python} -P -m {GATE} {runs}/"$LEADLINE_KEY".word {runs}/"$LEADLINE_KEY".json || exit {EXIT_NEVER_BEGAN}',
    ]


def _prologue(spec: JobSpec) -> list[str]:
    # ``set -u`` follows the set-up lines, because module scripts read unset variables.
    lines = ["set -eo pipefail", *spec.setup, "set -u"] if spec.setup else ["set -euo pipefail"]
    return [*lines, *exports(spec.environment), *([f"cd -- {shlex.quote(spec.workdir)}"] if spec.workdir else [])]


def _element_prologues(indices: tuple[int, ...], elements: list[JobSpec]) -> list[str]:
    """Return the lines that prepare each element of an array: its set-up, its limits and its command."""
    lines = ['case "$SLURM_ARRAY_TASK_ID" in']
    for index, element in zip(indices, elements, strict=True):
        limits = shlex.quote(" ".join(limit_arguments(element.resources)))
        lines += [f"{index})", *_prologue(element), f"limits={limits}", f"set -- {shlex.join(element.command)}", ";;"]
    return [*lines, "esac"]


def _wrapper_arguments(submission: Submission, folder: PurePosixPath, *, by_task: bool) -> str:
    # In single quotes: the rank is only known inside each task, where the wrapper expands it.
    task = "'.${SLURM_PROCID}'" if by_task else ""
    result = f'{shlex.quote(f"{folder}/{RUNS_FOLDER}")}/"$LEADLINE_KEY"{task}.json'
    arguments = [f'--once --since-s "$SECONDS" --result {result}']
    if submission.checkpoint_signal:
        # Slurm sends the signal; the wrapper must know it, because it may be one that ends other commands.
        name, _, before_s = _signal(submission).removeprefix("B:").partition("@")
        arguments.append(f"--warning {name} --warning-s {before_s}")
    if submission.spec.watched:
        arguments.append("--probe-hook")
    if submission.specs:
        arguments.append("$limits")
    if submission.spec.resources.walltime_s:
        arguments.append(f"--site-walltime-s {whole_minutes_s(submission.spec.resources.walltime_s)}")
    return " ".join(arguments)


def _signal(submission: Submission) -> str:
    """Return the warning: for the batch shell, which passes it to the command, or for all launched tasks."""
    match = _SIGNAL.fullmatch(submission.checkpoint_signal or "")
    if match is None:
        raise InvalidInput(f"{submission.checkpoint_signal!r} cannot be a signal: name one, for example USR1")
    before_s = min(max(round(submission.checkpoint_s), 1), LONGEST_WARNING_S)
    return f"{'' if _needs_launcher(submission.spec.resources) else 'B:'}{match[1]}@{before_s}"


def _rules(partition: Partition | None) -> SubmitRules:
    return partition.rules if partition else SubmitRules()


def _needs_launcher(resources: ResourceSpec) -> bool:
    """True if the command runs more than once, so that the site's launcher must start it."""
    return resources.nodes * resources.tasks_per_node > 1


def _long_names(names: Iterable[str]) -> set[str]:
    return {_LONG.get(name, name) for name in names}

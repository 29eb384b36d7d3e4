"""Write the batch script that a site accepts, from a job and the site's submit rules."""

import math
import re
import shlex
from collections.abc import Callable

from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobSpec, ResourceSpec
from leadline.core.systems import Partition, SubmitRules
from leadline.core.units import MIB, MINUTE_S, format_bytes, format_clock, format_duration

WRAPPER_MODULE = "leadline.execution.wrapper"
"""Module that measures the command where Leadline is installed."""

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
    "--gpus-per-node": "set the number of GPUs with --gpus",
    "--gpus": "set the number of GPUs with --gpus",
    "--gres": "set the number of GPUs with --gpus",
}
_TOKEN = re.compile(r"[^\s'\"\\#`$;]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def render_script(spec: JobSpec, partition: Partition | None = None, *, key: str = "", python: str = "python3") -> str:
    """Return the batch script of ``spec`` for ``partition``; None means unknown rules.

    Args:
        spec: the job.
        partition: the partition and its rules.
        key: part of the job's name and comment, to find the job again.
        python: interpreter of the cluster with Leadline. Without it, the command runs unmeasured.

    Raises:
        InvalidInput: a value cannot stand in a script, exceeds the partition's limits, or is required but missing.
    """
    rules = partition.rules if partition else SubmitRules()
    options = directives(spec, partition, key=key)
    lines = ["#!/bin/bash", *(f"#SBATCH {name}={value}" for name, value in options.items())]
    lines += [f"# {' '.join(note.split())}" for note in rules.notes]
    return "\n".join([*lines, "", *script_prologue(spec), *_command(spec, rules, python), ""])


def directives(spec: JobSpec, partition: Partition | None = None, *, key: str = "") -> dict[str, str]:
    """Return the ``#SBATCH`` options of ``spec`` by their long names; raises as ``render_script`` does."""
    rules = partition.rules if partition else SubmitRules()
    if partition:
        _check_limits(spec.resources, partition)
    options = _options(spec, partition, rules, key)
    _check_required(options, rules, _place(spec, partition))
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
    candidates: dict[str, str | None] = {
        "--job-name": _job_name(spec.name, key),
        "--comment": f"leadline:{key}" if key else None,
        "--account": spec.account,
        "--partition": _queue(partition) if partition else spec.partition,
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
    rejected = {_long(name) for name in rules.rejects}
    options = {name: value for name, value in candidates.items() if value and name not in rejected}
    for name, value in options.items():
        if not _TOKEN.fullmatch(value):
            raise InvalidInput(f"{value!r} cannot be the value of {name}: it contains a space, a quote or a line end")
    return options


def _queue(partition: Partition) -> str:
    return partition.name if partition.queue is None else partition.queue


def _job_name(name: str, key: str) -> str:
    """Return a name of at most 64 characters that needs no quoting in any listing."""
    # The key stays whole, because the job is found by it.
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "leadline"
    return f"{plain[: 63 - len(key)]}-{key}" if key else plain[:64]


def _tasks(resources: ResourceSpec, rules: SubmitRules) -> dict[str, str]:
    """Request tasks by node, or in total if the site requires it or rejects the other."""
    required, rejected = {_long(name) for name in rules.requires}, {_long(name) for name in rules.rejects}
    if "--ntasks" in required or "--ntasks-per-node" in rejected:
        return {"--ntasks": str(resources.tasks_per_node * resources.nodes)}
    return {"--ntasks-per-node": str(resources.tasks_per_node)}


def _gpus(resources: ResourceSpec, rules: SubmitRules) -> dict[str, str]:
    """Request GPUs as the site requires. Without GPUs there is no option, because an empty ``--gres`` fails."""
    if not resources.gpus_per_node or rules.gpu_option is None:
        return {}
    option = rules.gpu_option.format(gpus=resources.gpus_per_node, total=resources.gpus_per_node * resources.nodes)
    name, _, value = option.replace(" ", "=", 1).partition("=")
    return {_long(name): value}


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
    if not walltime_s > 0 or math.isinf(walltime_s):
        raise InvalidInput(f"a walltime of {walltime_s} s is not possible: use a finite time above zero")
    return math.ceil(walltime_s / MINUTE_S) * MINUTE_S


def _warning(resources: ResourceSpec) -> str | None:
    """Request SIGUSR1 to the wrapper before the limit: 5 % of the walltime, between one and five minutes."""
    # Only without a launcher does the wrapper replace the batch shell and get the signal.
    if resources.walltime_s is None or resources.walltime_s < WARNING_FROM_S or needs_launcher(resources):
        return None
    return f"B:USR1@{round(min(max(0.05 * resources.walltime_s, MINUTE_S), 5 * MINUTE_S))}"


def _check_required(options: dict[str, str], rules: SubmitRules, place: str) -> None:
    """Refuse a script without the options that the site requires."""
    for name in map(_long, rules.requires):
        if name not in options:
            fix = _FIX.get(name, "Leadline does not know its value; add it to the script by hand")
            raise InvalidInput(f"{place} accepts no job without {name}: {fix}")


def _place(spec: JobSpec, partition: Partition | None) -> str:
    return ":".join(part for part in (spec.system, partition.name if partition else spec.partition) if part) or "it"


def script_prologue(spec: JobSpec) -> list[str]:
    """Return the set-up lines. ``set -u`` follows them, because module scripts read unset variables."""
    lines = ["set -eo pipefail", *spec.setup, "set -u"] if spec.setup else ["set -euo pipefail"]
    for name, value in spec.environment.items():
        if not _VARIABLE.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot be an environment variable: use letters, digits and underscores")
        lines.append(f"export {name}={shlex.quote(value)}")
    if spec.workdir:
        lines.append(f"cd -- {shlex.quote(spec.workdir)}")
    return lines


def _command(spec: JobSpec, rules: SubmitRules, python: str) -> list[str]:
    """Return the lines that run the command in the shell's place, measured where Leadline is installed."""
    if not spec.command:
        raise InvalidInput("there is no command to run: give it after --, for example -- python train.py")
    if any("\0" in word for word in spec.command):
        raise InvalidInput("the command contains a NUL character: remove it")
    launcher = f"{rules.launcher} " if needs_launcher(spec.resources) else ""
    walltime_s = spec.resources.walltime_s
    limit = f" --site-walltime-s {whole_minutes_s(walltime_s)}" if walltime_s else ""
    command = shlex.join(spec.command)
    measured = f"{shlex.quote(python)} -P -m {WRAPPER_MODULE}"
    # In single quotes: the rank is only known inside each task, where the wrapper expands it.
    result = "'leadline-${SLURM_JOB_ID}-${SLURM_PROCID}.json'" if launcher else "'leadline-${SLURM_JOB_ID}.json'"
    return [
        f"if {measured} --version >/dev/null 2>&1; then",
        f"  exec {launcher}{measured} --result {result}{limit} -- {command}",
        "fi",
        "echo 'leadline is not installed here: the job runs unmeasured' >&2",
        f"exec {launcher}{command}",
    ]


def needs_launcher(resources: ResourceSpec) -> bool:
    """True if the command runs more than once, so that the site's launcher must start it."""
    return resources.nodes * resources.tasks_per_node > 1


def _long(name: str) -> str:
    return _LONG.get(name, name)

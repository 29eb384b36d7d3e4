"""A recommendation as the request of a workflow tool, with retries that ask for more memory and time."""

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.systems import System
from leadline.core.units import GIB, MIB, MINUTE_S
from leadline.interfaces.exports.quoting import groovy_string, yaml_string

RETRIES = 3
GROWTH = 1.5
"""Each retry asks for so many times the memory and the time of the attempt before, up to the partition's limits."""
LIMIT_CODES = (130, 137, 140, 143)
"""Exit codes of commands that were ended by SIGINT, SIGKILL, SIGUSR2 or SIGTERM, as for a limit."""
_GRES = re.compile(r"\w+(:[\w.]+)?(:\d+)?")
"""What Snakemake's Slurm plugin 2.7.1 accepts as ``gres``: its type of GPU has no hyphen."""
_NAME = re.compile(r"[^\s'\"\\#`$;]+")
"""A name as Slurm takes it in a script."""


class Request(Frozen):
    """What a snippet asks for.

    Attributes:
        place: system and partition, for people.
        device: the GPU by its name in the catalog; empty without one.
        attempts: memory of a node in MiB and time in minutes of the first attempt and of its retries.
        limits: sentence about the limits that the retries keep to.
        asks_memory: False where the site gives whole nodes, or rejects requests of memory.
        command: the command to run, as one line of shell.
        queue: the scheduler's name of the partition; empty where jobs name none.
        account: project to charge; empty for the user's default.
        gpu_option: the site's option for the GPUs, such as ``--gpus-per-node=1``; empty if it has none.
        gres: the GPUs of a node as a generic resource, such as ``gpu:1``; empty if the site has no option for them.
    """

    place: str
    device: str
    nodes: int
    tasks_per_node: int
    cores: int
    gpus_per_node: int
    attempts: tuple[tuple[int, int], ...]
    limits: str
    asks_memory: bool
    command: str
    queue: str
    account: str
    qos: str
    constraint: str
    gpu_option: str
    gres: str

    @property
    def title(self) -> str:
        """Return place and limits as one line, for a comment."""
        return " ".join(f"{self.place}. {self.limits}".split())

    @property
    def retries(self) -> int:
        """Return the number of attempts after the first."""
        return len(self.attempts) - 1


def build_request(option: Mapping[str, Any], system: System, command: Sequence[str], account: str = "") -> Request:
    """Return the request of an option of a recommendation, by the rules of its site.

    Args:
        option: The option, from the recommendation's document.
        system: The option's system in the catalog.
        command: The command to run.
        account: Project to charge; empty for the user's default.

    Raises:
        InvalidInput: the option has no limits, or the site demands an account.
    """
    resources, partition = option["resources"], system.partition(option["partition"])
    place, rules = f"{system.name}:{partition.name}", partition.rules
    if not resources["memory_bytes_per_node"] or not resources["walltime_s"]:
        raise InvalidInput(f"the option on {place} has no memory or time limit, which a retry would raise")
    if "--account" in rules.requires and not account:
        raise InvalidInput(f"{place} accepts no job without an account: name the project to charge with --account")
    queue = partition.name if partition.queue is None else partition.queue
    for name in filter(None, (queue, account, rules.qos, rules.constraint)):
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} cannot be asked of {place}: it contains a space, a quote or another mark")
    gpus, nodes = resources["gpus_per_node"], resources["nodes"]
    gpu_option = rules.gpu_option.replace(" ", "=", 1) if gpus and rules.gpu_option else ""
    of_node = gpu_option.format(gpus=gpus, total=gpus).partition("=")[2]
    memory_bytes = partition.node.usable_memory_bytes or partition.node.memory_bytes
    most_mib = None if memory_bytes is None else memory_bytes // MIB
    longest_s = partition.limits.max_walltime_s
    most_minutes = None if longest_s is None else int(longest_s // MINUTE_S)
    asks_memory = not (rules.whole_nodes or "--mem" in rules.rejects)
    return Request(
        place=place, device=option["device"] or "", nodes=nodes, tasks_per_node=resources["tasks_per_node"],
        cores=resources["cores_per_task"] or 1, gpus_per_node=gpus,
        attempts=_attempts(resources, most_mib, most_minutes, asks_memory=asks_memory),
        limits=_limits(most_mib, most_minutes), asks_memory=asks_memory, command=shlex.join(command), queue=queue,
        account=account, qos=rules.qos or "", constraint=rules.constraint or "",
        gpu_option=gpu_option.format(gpus=gpus, total=gpus * nodes),
        gres=of_node if not of_node or of_node.startswith("gpu") else f"gpu:{of_node}",
    )  # fmt: skip


def _attempts(
    resources: Mapping[str, Any], most_mib: int | None, most_minutes: int | None, *, asks_memory: bool
) -> tuple[tuple[int, int], ...]:
    """Return memory and time of the attempts; a retry that would ask for no more than the one before is left out."""
    memory_mib = math.ceil(resources["memory_bytes_per_node"] / MIB)
    minutes = math.ceil(resources["walltime_s"] / MINUTE_S)
    attempts = [
        (_grown(memory_mib, retry * asks_memory, most_mib), _grown(minutes, retry, most_minutes))
        for retry in range(RETRIES + 1)
    ]
    return tuple(dict.fromkeys(attempts))


def _grown(amount: int, retry: int, most: int | None) -> int:
    grown = math.ceil(amount * GROWTH**retry)
    return grown if most is None else max(amount, min(grown, most))


def _limits(most_mib: int | None, most_minutes: int | None) -> str:
    """Return the sentence about the partition's limits that the retries keep to."""
    known = [] if most_mib is None else [f"{most_mib:,} MiB a node"]
    known += [] if most_minutes is None else [f"{most_minutes:,} minutes"]
    unknown = [noun for noun, most in (("memory", most_mib), ("time", most_minutes)) if most is None]
    sentences = [f"Retries stop at its limits of {' and '.join(known)}."] if known else []
    sentences += [f"Its limits of {' and '.join(unknown)} are unknown: a retry may exceed them."] if unknown else []
    return " ".join(sentences)


def _names(request: Request) -> dict[str, str]:
    """Return the names that the site's rules or the user add to a request, by their Slurm options."""
    names = {"account": request.account, "qos": request.qos, "constraint": request.constraint}
    return {option: name for option, name in names.items() if name}


def snakemake(request: Request) -> str:
    """Return a rule for Snakemake with the Slurm executor."""
    memory_mib, minutes = zip(*request.attempts, strict=True)
    values: dict[str, str | int] = {"slurm_partition": request.queue, **_names(request), "nodes": request.nodes}
    if _GRES.fullmatch(request.gres):
        # With a gres, the plugin would ask for "tasks" tasks on every GPU; -1 leaves one task a node.
        extra = f"--ntasks-per-node={request.tasks_per_node}" if request.tasks_per_node > 1 else ""
        values |= {"gres": request.gres, "tasks_per_gpu": -1, "slurm_extra": extra}
    else:
        extra = f"--gpus-per-node={request.gres.removeprefix('gpu:')}" if request.gres else ""
        values |= {"tasks": request.nodes * request.tasks_per_node, "slurm_extra": extra}
    return "\n".join([
        f"# {request.title}",
        "# snakemake --executor slurm --jobs 1",
        "rule train:",
        f"    retries: {request.retries}",
        f"    threads: {request.cores}",
        "    resources:",
        *(f"        {name.replace('account', 'slurm_account')}={value!r}," for name, value in values.items() if value),
        *([f"        mem_mb={_by_attempt(memory_mib)},"] if request.asks_memory else []),
        f"        runtime={_by_attempt(minutes)},",
        "    shell:",
        # Snakemake replaces names in braces.
        f"        {request.command.replace('{', '{{').replace('}', '}}')!r}",
        "",
    ])  # fmt: skip


def _by_attempt(values: Sequence[int]) -> str:
    """Return a function for Snakemake, which counts attempts from 1; the last value holds for any further one."""
    return f"lambda wildcards, attempt: {list(values)}[min(attempt, {len(values)}) - 1]"


def nextflow(request: Request) -> str:
    """Return a process for Nextflow."""
    codes = ", ".join(map(str, LIMIT_CODES))
    options = [f"--nodes={request.nodes}", f"--ntasks-per-node={request.tasks_per_node}"]
    options += [shlex.quote(f"--{name}={value}") for name, value in _names(request).items()]
    memory = ", ".join(f"{memory_mib}.MB" for memory_mib, _ in request.attempts)
    time = ", ".join(f"{minutes}.min" for _, minutes in request.attempts)
    return "\n".join([
        f"// {request.title}",
        "process TRAIN {",
        "    executor 'slurm'",
        *([f"    queue {groovy_string(request.queue)}"] if request.queue else []),
        f"    cpus {request.cores}",
        *([f"    memory {{ [{memory}][task.attempt - 1] }}"] if request.asks_memory else []),
        f"    time {{ [{time}][task.attempt - 1] }}",
        f"    clusterOptions {groovy_string(' '.join(filter(None, [*options, request.gpu_option])))}",
        f"    errorStrategy {{ task.exitStatus in [{codes}] ? 'retry' : 'finish' }}",
        f"    maxRetries {request.retries}",
        "",
        "    script:",
        f"    {groovy_string(request.command)}",
        "}",
        "",
    ])  # fmt: skip


def submitit(request: Request) -> str:
    """Return a Python program that submits with submitit, and again with more after a limit."""
    gpu_name, _, gpu_value = request.gpu_option.lstrip("-").partition("=")
    more = {**_names(request), **({gpu_name.replace("-", "_"): gpu_value} if gpu_name else {})}
    return "\n".join([
        '"""Run a command with submitit, and again with more memory and time if it was ended for a limit."""',
        "",
        "import submitit",
        "",
        f"# {request.title}",
        f"ATTEMPTS = {list(request.attempts)}  # MiB a node and minutes",
        "",
        f"command = submitit.helpers.CommandFunction({shlex.split(request.command)!r})",
        'executor = submitit.AutoExecutor(folder="submitit-logs")',
        "for memory_mib, minutes in ATTEMPTS:",
        "    executor.update_parameters(",
        f"        nodes={request.nodes}, tasks_per_node={request.tasks_per_node}, cpus_per_task={request.cores},",
        *([f"        slurm_partition={request.queue!r},"] if request.queue else []),
        *(['        slurm_mem=f"{memory_mib}M",'] if request.asks_memory else []),
        "        timeout_min=minutes,",
        *([f"        slurm_additional_parameters={more!r},"] if more else []),
        "    )",
        "    job = executor.submit(command)",
        "    try:",
        "        print(job.result())",
        "        break",
        "    except submitit.core.utils.UncompletedJobError as error:",
        "        # submitit itself ends a job shortly before its time limit, as FAILED.",
        '        at_limit = job.state in ("OUT_OF_MEMORY", "TIMEOUT") or "timed-out" in str(error)',
        "        if not at_limit or (memory_mib, minutes) == ATTEMPTS[-1]:",
        "            raise",
        "",
    ])  # fmt: skip


def skypilot(request: Request) -> str:
    """Return a task for SkyPilot, which chooses the cloud."""
    gpus = yaml_string(f"{sky_name(request.device)}:{request.gpus_per_node}")
    memory_mib, minutes = request.attempts[0]
    return "\n".join([
        f"# sky launch task.yaml; the job needs about {minutes} minutes",
        "workdir: .",
        f"num_nodes: {request.nodes}",
        "resources:",
        *([f"  accelerators: {gpus}"] if request.device and request.gpus_per_node else []),
        f'  memory: "{math.ceil(memory_mib * MIB / GIB)}+"',
        f'  cpus: "{request.cores * request.tasks_per_node}+"',
        "  autostop: {idle_minutes: 5, down: true}",
        f"run: {yaml_string(request.command)}",
        "",
    ])  # fmt: skip


def sky_name(device: str) -> str:
    """Return SkyPilot's name of a device: ``A100 SXM4 80GB`` is ``A100-80GB``."""
    words = device.replace("(", " ").split()
    kept = [word for word in words if word not in ("SXM", "SXM2", "SXM4", "SXM5", "PCIe", "SXM3")]
    name = kept[0] if kept else device
    with_size = {("A100", "80GB"): "A100-80GB", ("V100", "32GB"): "V100-32GB"}
    return with_size.get(
        (name, kept[1] if len(kept) > 1 else ""), name if name not in ("RTX", "GTX") else "".join(kept[:2])
    )


FORMS: dict[str, Callable[[Request], str]] = {
    "snakemake": snakemake, "nextflow": nextflow, "submitit": submitit, "skypilot": skypilot,
}  # fmt: skip
"""Name of a tool → its snippet."""

"""A recommendation as the request of a workflow tool, with retries that ask for more memory and time."""

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.units import GIB, MIB, MINUTE_S

RETRIES = 3
GROWTH = 1.5
"""Each retry asks for so many times the memory and the time of the attempt before."""
LIMIT_CODES = (130, 137, 140, 143)
"""Exit codes of commands that were ended by SIGINT, SIGKILL, SIGUSR2 or SIGTERM, as for a limit."""


class Request(Frozen):
    """What a snippet asks for."""

    system: str
    partition: str
    device: str
    nodes: int
    tasks_per_node: int
    cores: int
    gpus_per_node: int
    memory_mib: int
    minutes: int
    command: str


def request_of(document: Mapping[str, Any], command: Sequence[str], rank: int = 1) -> Request:
    """Return the request of an option of a recommendation.

    Args:
        document: The recommendation's document.
        command: The command to run.
        rank: The option's rank, from 1.

    Raises:
        InvalidInput: it has no such option, or the option has no limits.
    """
    options = document["options"]
    if not 1 <= rank <= len(options):
        raise InvalidInput(f"the recommendation has {len(options)} options, and number {rank} is asked for")
    option = options[rank - 1]
    resources = option["resources"]
    if not resources["memory_bytes_per_node"] or not resources["walltime_s"]:
        raise InvalidInput(f"option {rank} has no memory or time limit, which a retry would raise")
    return Request(
        option["system"], option["partition"], option["device"] or "", resources["nodes"], resources["tasks_per_node"],
        resources["cores_per_task"] or 1, resources["gpus_per_node"],
        math.ceil(resources["memory_bytes_per_node"] / MIB), math.ceil(resources["walltime_s"] / MINUTE_S),
        shlex.join(option["command"] or command),
    )  # fmt: skip


def snakemake(request: Request) -> str:
    """Return a rule for Snakemake with the Slurm executor."""
    gpus = f'        gres="gpu:{request.gpus_per_node}",\n' if request.gpus_per_node else ""
    return (
        f"# {request.system}: snakemake --executor slurm --retries {RETRIES}\n"
        "rule train:\n"
        f"    retries: {RETRIES}\n"
        f"    threads: {request.cores}\n"
        "    resources:\n"
        f'        slurm_partition="{request.partition}",\n'
        f"        nodes={request.nodes},\n"
        f"        tasks={request.nodes * request.tasks_per_node},\n"
        f"        mem_mb=lambda wildcards, attempt: int({request.memory_mib} * {GROWTH} ** (attempt - 1)),\n"
        f"        runtime=lambda wildcards, attempt: int({request.minutes} * {GROWTH} ** (attempt - 1)),\n"
        f"{gpus}"
        "    shell:\n"
        f"        {_python(request.command)}\n"
    )


def nextflow(request: Request) -> str:
    """Return a process for Nextflow."""
    gpus = f" --gpus-per-node={request.gpus_per_node}" if request.gpus_per_node else ""
    codes = ", ".join(map(str, LIMIT_CODES))
    script = request.command.replace("\\", "\\\\").replace("$", "\\$").replace('"""', '\\"\\"\\"')
    return (
        f"// {request.system}\n"
        "process TRAIN {\n"
        "    executor 'slurm'\n"
        f"    queue '{request.partition}'\n"
        f"    cpus {request.cores}\n"
        f"    memory {{ {request.memory_mib}.MB * Math.pow({GROWTH}, task.attempt - 1) }}\n"
        f"    time {{ {request.minutes}.min * Math.pow({GROWTH}, task.attempt - 1) }}\n"
        f"    clusterOptions '--nodes={request.nodes}{gpus}'\n"
        f"    errorStrategy {{ task.exitStatus in [{codes}] ? 'retry' : 'finish' }}\n"
        f"    maxRetries {RETRIES}\n\n"
        "    script:\n"
        '    """\n'
        f"    {script}\n"
        '    """\n'
        "}\n"
    )


def submitit(request: Request) -> str:
    """Return a Python program that submits with submitit, and again with more after a limit."""
    gpus = f"gpus_per_node={request.gpus_per_node}, " if request.gpus_per_node else ""
    return (
        f'"""Run a command on {request.system}, and again with more memory and time if it was ended for a limit."""\n\n'
        "import submitit\n\n"
        f"command = submitit.helpers.CommandFunction({shlex.split(request.command)!r})\n"
        'executor = submitit.AutoExecutor(folder="submitit-logs")\n'
        f"for attempt in range({RETRIES + 1}):\n"
        f"    more = {GROWTH} ** attempt\n"
        "    executor.update_parameters(\n"
        f'        slurm_partition="{request.partition}", nodes={request.nodes},\n'
        f"        tasks_per_node={request.tasks_per_node},\n"
        f"        cpus_per_task={request.cores}, {gpus}mem_gb=int({request.memory_mib / 1024:.1f} * more) + 1,\n"
        f"        timeout_min=int({request.minutes} * more),\n"
        "    )\n"
        "    job = executor.submit(command)\n"
        "    try:\n"
        "        print(job.result())\n"
        "        break\n"
        "    except submitit.core.utils.UncompletedJobError:\n"
        '        if job.state not in ("OUT_OF_MEMORY", "TIMEOUT"):\n'
        "            raise\n"
    )


def skypilot(request: Request) -> str:
    """Return a task for SkyPilot, which chooses the cloud."""
    accelerators = (
        f"  accelerators: {sky_name(request.device)}:{request.gpus_per_node}\n" if request.gpus_per_node else ""
    )
    return (
        f"# sky launch task.yaml; the job needs about {request.minutes} minutes\n"
        f"num_nodes: {request.nodes}\n"
        "resources:\n"
        f"{accelerators}"
        f"  memory: {math.ceil(request.memory_mib * MIB / GIB)}+\n"
        f"  cpus: {request.cores}+\n"
        f"  autostop: {{idle_minutes: 5, down: true}}\n"
        # A string of JSON is one of YAML, too, whatever the command has in it.
        f"run: {json.dumps(request.command)}\n"
    )


def sky_name(device: str) -> str:
    """Return SkyPilot's name of a device: ``A100 SXM4 80GB`` is ``A100-80GB``."""
    words = device.replace("(", " ").split()
    kept = [word for word in words if word not in ("SXM", "SXM2", "SXM4", "SXM5", "PCIe", "SXM3")]
    name = kept[0] if kept else device
    with_size = {("A100", "80GB"): "A100-80GB", ("V100", "32GB"): "V100-32GB"}
    return with_size.get(
        (name, kept[1] if len(kept) > 1 else ""), name if name not in ("RTX", "GTX") else "".join(kept[:2])
    )


def _python(text: str) -> str:
    """Return shell text as a Python string whose braces Snakemake leaves alone."""
    return repr(text.replace("{", "{{").replace("}", "}}"))


FORMS: dict[str, Callable[[Request], str]] = {
    "snakemake": snakemake, "nextflow": nextflow, "submitit": submitit, "skypilot": skypilot,
}  # fmt: skip
"""Name of a tool → its snippet."""

"""Parse a training command: interpreter, script or module, arguments and number of processes."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.frozen import Frozen
from leadline.core.units import parse_whole
from leadline.files.read import is_file

LAUNCHER_MODULES = {
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
}  # fmt: skip
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
TASK_LAUNCHERS = ("srun", "mpirun", "mpiexec", "ibrun")
"""Programs that start a whole command several times, with or without GPUs."""
PROCESS_OPTIONS = {
    "--nproc_per_node", "--nproc-per-node", "--num_processes", "--num-processes", "--gpus", "--num_gpus", "--num-gpus",
}  # fmt: skip
NODE_OPTIONS = {"--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--num-nodes"}
GPU_SWITCHES, CPU_SWITCHES = {"--multi_gpu", "--multi-gpu"}, {"--cpu", "--use_cpu", "--use-cpu"}
SWITCHES = {
    "--standalone", "--use_env", "--no_python", "--use_fsdp", "--use-fsdp", "--use_deepspeed", "--tpu", "--debug",
    "--quiet", "-q", "--same_network", *GPU_SWITCHES, *CPU_SWITCHES,
}  # fmt: skip
PYTHON_VALUE_OPTIONS = {"-W", "-X"}


class PythonCommand(Frozen):
    """A Python training command, launcher removed.

    ``needs_gpus`` is true if the launcher starts its processes for GPUs. ``python`` is the interpreter or the launcher.
    """

    python: str
    target: str
    argv: tuple[str, ...] = ()
    is_module: bool = False
    local_processes: int = 1
    nodes: int = 1
    needs_gpus: bool = False


def parse_command(words: tuple[str, ...]) -> PythonCommand:
    """Split a command as typed into interpreter, script and launcher options.

    Raises:
        InvalidInput: There is no command, or no such interpreter or script.
        Untraceable: The command does not start Python.
    """
    command = read_command(words)
    if not command.is_module and not is_file(command.target):
        raise InvalidInput(f"{command.target!r} cannot be traced: there is no such file; check the path")
    is_launcher = Path(command.python).name in LAUNCHERS
    return replace(command, python=(_launcher_python if is_launcher else _find_program)(command.python))


def read_command(words: tuple[str, ...]) -> PythonCommand:
    """Return ``words`` as ``parse_command`` does; neither the interpreter nor the script need be on this machine.

    Raises as ``parse_command``.
    """
    if not words:
        raise InvalidInput("there is no command to trace: write it after --, such as -- python train.py")
    program, arguments = Path(words[0]).name, list(words[1:])
    if program in TASK_LAUNCHERS:
        inner = next((number for number, word in enumerate(words) if number and _starts_python(word)), None)
        if inner is not None:
            # `-N` of Open MPI counts processes a node, not nodes.
            node_options = ("--nodes", "-N") if program == "srun" else ("--nodes",)
            return _add_tasks(read_command(words[inner:]), words[1:inner], node_options)
    if program in LAUNCHERS:
        if program == "accelerate" and arguments[:1] != ["launch"]:
            raise Untraceable(f"'accelerate {' '.join(arguments[:1])}' trains nothing: use 'accelerate launch'")
        return _parse_launcher(words[0], arguments[program == "accelerate" :], program)
    if not program.startswith(("python", "pypy")):
        if words[0].endswith(".py"):
            return PythonCommand("python3", words[0], tuple(arguments))
        raise Untraceable(
            f"{words[0]!r} is not Python: give the command that starts it, such as python train.py or torchrun train.py"
        )
    return _parse_python(words[0], arguments)


def _starts_python(word: str) -> bool:
    name = Path(word).name
    return name in LAUNCHERS or name.startswith(("python", "pypy")) or name.endswith(".py")


def _add_tasks(command: PythonCommand, options: Sequence[str], node_options: tuple[str, ...]) -> PythonCommand:
    """Return ``command`` with a process for each GPU that the ``options`` of a task launcher ask for, if any."""
    nodes = _number_of(options, *node_options) or 1
    tasks = _number_of(options, "-n", "--ntasks", "-np") or nodes * (_number_of(options, "--ntasks-per-node") or 1)
    per_node = _number_of(options, "--gpus-per-node") or _number_of(options, "--gres", of="gpu")
    per_task = _number_of(options, "--gpus-per-task")
    gpus = _number_of(options, "--gpus", "-G") or (per_node or 0) * nodes or (per_task or 0) * tasks
    if not gpus:
        return command
    nodes = max(nodes, command.nodes)
    return replace(command, local_processes=-(-gpus // nodes), nodes=nodes, needs_gpus=True)


def _number_of(options: Sequence[str], *names: str, of: str = "") -> int | None:
    """Return the number at the end of an option's value, such as of ``-G 8``, ``-G8`` or ``--gres=gpu:a100:8``."""
    for word, following in zip(options, [*options[1:], ""], strict=True):
        name, joined, value = word.partition("=")
        if name not in names:
            name, value = word[:2], word[2:]
            if not value or name not in names or name == "--":
                continue
        elif not joined:
            value = following
        if of in value:
            digits = re.search(r"\d+$", value)
            if digits and parse_whole(digits[0]) is None:
                raise InvalidInput(f"{name} is {value!r}: give a number of at most 18 digits")
            return int(digits[0]) if digits else 1
    return None


def _parse_python(python: str, arguments: list[str]) -> PythonCommand:
    while arguments and arguments[0].startswith("-") and arguments[0] != "-m":
        if arguments[0] == "-c":
            raise Untraceable("code given with -c has no file to trace: put it in a script")
        arguments = arguments[2:] if arguments[0] in PYTHON_VALUE_OPTIONS else arguments[1:]
    if not arguments:
        raise InvalidInput("the command names no script: write it as python train.py --batch-size 64")
    if arguments[0] == "-m":
        if len(arguments) < 2:
            raise InvalidInput("the command ends after -m: name the module to run")
        if arguments[1] in LAUNCHER_MODULES:
            return _parse_launcher(python, arguments[2:], arguments[1].partition(".")[0])
        return PythonCommand(python, arguments[1], tuple(arguments[2:]), is_module=True)
    return PythonCommand(python, arguments[0], tuple(arguments[1:]))


def _parse_launcher(python: str, arguments: list[str], launcher: str) -> PythonCommand:
    """Read a launcher's own options, then its script."""
    processes = nodes = 1
    is_module, needs_gpus, on_cpus = False, launcher == "deepspeed", False
    while arguments and arguments[0].startswith("-"):
        name, joined, value = arguments[0].partition("=")
        if name in ("-m", "--module"):
            is_module, arguments = True, arguments[1:]
            continue
        takes_value = not joined and name not in SWITCHES and len(arguments) > 1
        value = value if joined else (arguments[1] if takes_value else "")
        needs_gpus |= name in GPU_SWITCHES
        on_cpus |= name in CPU_SWITCHES
        if name in PROCESS_OPTIONS:
            processes = _process_count(name, value)
            needs_gpus, on_cpus = needs_gpus or value not in ("auto", "cpu"), on_cpus or value == "cpu"
        elif name in NODE_OPTIONS:
            nodes = _process_count(name, value.partition(":")[2] or value)
        arguments = arguments[2:] if takes_value else arguments[1:]
    if not arguments:
        raise InvalidInput("the launcher's command names no script: write it as torchrun --nproc_per_node=4 train.py")
    if launcher == "accelerate":  # it is told the processes of all machines
        processes = -(-processes // nodes)
    return PythonCommand(
        python, arguments[0], tuple(arguments[1:]), is_module, processes, nodes, needs_gpus and not on_cpus
    )


def _process_count(name: str, value: str) -> int:
    if value in ("gpu", "auto", "cpu"):
        return 1
    if not (count := parse_whole(value)):
        raise InvalidInput(f"{name} is {value!r}: give the number of processes, such as {name}=4")
    return count


def _find_program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise InvalidInput(f"{program!r} cannot be started: it is not on the PATH; activate the job's environment")
    return path


def _launcher_python(launcher: str) -> str:
    """Return the interpreter of the environment that a launcher belongs to."""
    path = shutil.which(launcher)
    folders = [str(Path(path).parent)] if path else []
    beside = (shutil.which(name, path=folder) for folder in (*folders, None) for name in ("python", "python3"))
    return next(filter(None, beside), None) or _find_program("python3")

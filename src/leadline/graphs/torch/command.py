"""Read a training command: which interpreter, which script or module, which arguments, how many processes."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from leadline.core.errors import InvalidInput, Untraceable

LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
PROCESS_OPTIONS = {"--nproc_per_node", "--nproc-per-node", "--num_processes", "--num-processes", "--gpus"}
NODE_OPTIONS = {"--nnodes", "--num_machines", "--num-machines"}
SWITCHES = {
    "--standalone", "--multi_gpu", "--multi-gpu", "--use_env", "--no_python", "--cpu", "--use_fsdp", "--use-fsdp",
    "--use_deepspeed", "--tpu", "--debug", "--quiet", "-q", "--same_network",
}  # fmt: skip
PYTHON_VALUE_OPTIONS = {"-W", "-X"}


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A Python training command, launcher removed."""

    python: str
    target: str
    argv: tuple[str, ...] = ()
    is_module: bool = False
    local_processes: int = 1
    nodes: int = 1
    options: dict[str, str] = field(default_factory=dict)


def parse_command(words: tuple[str, ...]) -> PythonCommand:
    """Split a command as typed into interpreter, script and launcher options.

    Raises:
        InvalidInput: there is no command, or no such interpreter or script.
        Untraceable: the command does not start Python.
    """
    if not words:
        raise InvalidInput("there is no command to trace: write it after --, such as -- python train.py")
    program, rest = Path(words[0]).name, list(words[1:])
    if program in ("torchrun", "accelerate"):
        python = _beside(words[0])
        if program == "accelerate":
            if rest[:1] != ["launch"]:
                raise Untraceable(f"'accelerate {' '.join(rest[:1])}' trains nothing: use 'accelerate launch'")
            rest = rest[1:]
        return _launched(python, rest)
    if not program.startswith(("python", "pypy")):
        if words[0].endswith(".py"):
            return _checked(PythonCommand(_find("python3"), words[0], tuple(rest)))
        raise Untraceable(
            f"{words[0]!r} is not Python: give the command that starts it, such as python train.py or torchrun train.py"
        )
    return _plain(_find(words[0]), rest)


def _plain(python: str, rest: list[str]) -> PythonCommand:
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] == "-c":
            raise Untraceable("code given with -c has no file to trace: put it in a script")
        rest = rest[2:] if rest[0] in PYTHON_VALUE_OPTIONS else rest[1:]
    if not rest:
        raise InvalidInput("the command names no script: write it as python train.py --batch-size 64")
    if rest[0] == "-m":
        if len(rest) < 2:
            raise InvalidInput("the command ends after -m: name the module to run")
        if rest[1] in LAUNCHER_MODULES:
            return _launched(python, rest[2:])
        return PythonCommand(python, rest[1], tuple(rest[2:]), is_module=True)
    return _checked(PythonCommand(python, rest[0], tuple(rest[1:])))


def _launched(python: str, rest: list[str]) -> PythonCommand:
    """Take a launcher's own options off the front."""
    processes = nodes = 1
    is_module = False
    while rest and rest[0].startswith("-"):
        name, joined, value = rest[0].partition("=")
        if name in ("-m", "--module"):
            is_module, rest = True, rest[1:]
            continue
        takes = not joined and name not in SWITCHES and len(rest) > 1
        value = value if joined else (rest[1] if takes else "")
        if name in PROCESS_OPTIONS:
            processes = _count(name, value)
        elif name in NODE_OPTIONS:
            nodes = _count(name, value.partition(":")[2] or value)
        rest = rest[2:] if takes else rest[1:]
    if not rest:
        raise InvalidInput("the launcher's command names no script: write it as torchrun --nproc_per_node=4 train.py")
    return _checked(PythonCommand(python, rest[0], tuple(rest[1:]), is_module, processes, nodes))


def _count(name: str, value: str) -> int:
    if value in ("gpu", "auto", "cpu"):
        return 1
    if not value.isdigit() or int(value) < 1:
        raise InvalidInput(f"{name} is {value!r}: give the number of processes, such as {name}=4")
    return int(value)


def _checked(command: PythonCommand) -> PythonCommand:
    if not command.is_module and not Path(command.target).is_file():
        raise InvalidInput(f"{command.target!r} cannot be traced: there is no such file; check the path")
    return command


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise InvalidInput(f"{program!r} cannot be started: it is not on the PATH; activate the job's environment")
    return found


def _beside(launcher: str) -> str:
    """Return the interpreter that a launcher of an environment belongs to."""
    found = shutil.which(launcher)
    if found is not None:
        for name in ("python", "python3"):
            beside = Path(found).parent / name
            if beside.exists():
                return str(beside)
    return _find("python3") if shutil.which("python") is None else _find("python")

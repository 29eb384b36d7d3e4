"""Parse a training command: interpreter, script or module, arguments and number of processes."""

import shutil
from pathlib import Path

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.frozen import Frozen
from leadline.files.read import is_file

LAUNCHER_MODULES = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
PROCESS_OPTIONS = {"--nproc_per_node", "--nproc-per-node", "--num_processes", "--num-processes", "--gpus"}
NODE_OPTIONS = {"--nnodes", "--num_machines", "--num-machines"}
SWITCHES = {
    "--standalone", "--multi_gpu", "--multi-gpu", "--use_env", "--no_python", "--cpu", "--use_fsdp", "--use-fsdp",
    "--use_deepspeed", "--tpu", "--debug", "--quiet", "-q", "--same_network",
}  # fmt: skip
PYTHON_VALUE_OPTIONS = {"-W", "-X"}


class PythonCommand(Frozen):
    """A Python training command, launcher removed."""

    python: str
    target: str
    argv: tuple[str, ...] = ()
    is_module: bool = False
    local_processes: int = 1
    nodes: int = 1


def parse_command(words: tuple[str, ...]) -> PythonCommand:
    """Split a command as typed into interpreter, script and launcher options.

    Raises:
        InvalidInput: There is no command, or no such interpreter or script.
        Untraceable: The command does not start Python.
    """
    if not words:
        raise InvalidInput("there is no command to trace: write it after --, such as -- python train.py")
    program, arguments = Path(words[0]).name, list(words[1:])
    if program in ("torchrun", "accelerate"):
        if program == "accelerate" and arguments[:1] != ["launch"]:
            raise Untraceable(f"'accelerate {' '.join(arguments[:1])}' trains nothing: use 'accelerate launch'")
        return _parse_launcher(_launcher_python(words[0]), arguments[program == "accelerate" :])
    if not program.startswith(("python", "pypy")):
        if words[0].endswith(".py"):
            return _require_script(PythonCommand(_find_program("python3"), words[0], tuple(arguments)))
        raise Untraceable(
            f"{words[0]!r} is not Python: give the command that starts it, such as python train.py or torchrun train.py"
        )
    return _parse_python(_find_program(words[0]), arguments)


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
            return _parse_launcher(python, arguments[2:])
        return PythonCommand(python, arguments[1], tuple(arguments[2:]), is_module=True)
    return _require_script(PythonCommand(python, arguments[0], tuple(arguments[1:])))


def _parse_launcher(python: str, arguments: list[str]) -> PythonCommand:
    """Read a launcher's own options, then its script."""
    processes = nodes = 1
    is_module = False
    while arguments and arguments[0].startswith("-"):
        name, joined, value = arguments[0].partition("=")
        if name in ("-m", "--module"):
            is_module, arguments = True, arguments[1:]
            continue
        takes_value = not joined and name not in SWITCHES and len(arguments) > 1
        value = value if joined else (arguments[1] if takes_value else "")
        if name in PROCESS_OPTIONS:
            processes = _process_count(name, value)
        elif name in NODE_OPTIONS:
            nodes = _process_count(name, value.partition(":")[2] or value)
        arguments = arguments[2:] if takes_value else arguments[1:]
    if not arguments:
        raise InvalidInput("the launcher's command names no script: write it as torchrun --nproc_per_node=4 train.py")
    return _require_script(PythonCommand(python, arguments[0], tuple(arguments[1:]), is_module, processes, nodes))


def _process_count(name: str, value: str) -> int:
    if value in ("gpu", "auto", "cpu"):
        return 1
    if not value.isdigit() or int(value) < 1:
        raise InvalidInput(f"{name} is {value!r}: give the number of processes, such as {name}=4")
    return int(value)


def _require_script(command: PythonCommand) -> PythonCommand:
    if not command.is_module and not is_file(command.target):
        raise InvalidInput(f"{command.target!r} cannot be traced: there is no such file; check the path")
    return command


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

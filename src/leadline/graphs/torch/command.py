"""Parse a training command: interpreter, script or module, arguments and number of processes.

Programs before the interpreter are read away (``srun``, ``nohup``, ``env``) or kept before it (``conda run``). A shell
script is read as far as it calls Python once.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.frozen import Frozen
from leadline.core.units import parse_whole
from leadline.files.read import is_file, read_input_text
from leadline.graphs.torch.shell_script import read_script

LAUNCHER_MODULES = {
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner",
}  # fmt: skip
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
ENVIRONMENTS = ("conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi", "pdm", "hatch", "rye")
"""Programs that run a command in an environment of their own, as ``conda run -n NAME python``."""
WRAPPERS = ("nohup", "time", "nice", "timeout", "stdbuf", "exec", "command", "numactl", "taskset", "setsid", "unbuffer")
"""Programs that run a command as it is, in another mode."""
CONTAINERS = ("docker", "podman", "singularity", "apptainer", "enroot", "shifter")
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
WRAPPER_VALUES = {
    "-n", "--name", "-p", "--prefix", "--cwd", "--python", "--with", "--with-requirements", "--project", "--directory",
    "--extra", "--group", "--env-file", "--package", "--index", "-e", "--environment",
}  # fmt: skip
"""Options of such programs that take a value."""
TASK_LAUNCHERS = ("srun", "mpirun", "mpiexec", "ibrun")
"""Programs that start a whole command several times, with or without GPUs."""
PROCESS_OPTIONS = {
    "--nproc_per_node", "--nproc-per-node", "--num_processes", "--num-processes", "--gpus", "--num_gpus", "--num-gpus",
}  # fmt: skip
NODE_OPTIONS = {"--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--num-nodes"}
GPU_SWITCHES, CPU_SWITCHES = {"--multi_gpu", "--multi-gpu"}, {"--cpu", "--use_cpu", "--use-cpu"}
SWITCHES = {
    "--standalone", "--use_env", "--no_python", "--use_fsdp", "--use-fsdp", "--use_deepspeed", "--tpu", "--debug",
    "--quiet", "-q", "--same_network", "--no_local_rank", "--use-env", "--no-python", *GPU_SWITCHES, *CPU_SWITCHES,
}  # fmt: skip
PYTHON_VALUE_OPTIONS = {"-W", "-X"}


class PythonCommand(Frozen):
    """A Python training command, launcher removed.

    Attributes:
        python: The interpreter or the launcher.
        needs_gpus: The launcher starts its processes for GPUs.
        per_gpu: The option with which the launcher starts a process for each GPU, however many there are.
        launcher: Name of the launcher, whose ``options`` follow; empty without one.
        prefix: Words that have to stay before the interpreter, such as ``conda run -n NAME``.
        variables: Environment variables that the command sets.
        folder: Folder that the command changes to.
    """

    python: str
    target: str
    argv: tuple[str, ...] = ()
    is_module: bool = False
    local_processes: int = 1
    nodes: int = 1
    needs_gpus: bool = False
    per_gpu: str = ""
    launcher: str = ""
    options: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    folder: str = ""

    def start_folder(self, cwd: Path | None) -> Path | None:
        """Return the folder in which the command starts when typed in ``cwd``; ``None`` is the current one."""
        return Path(cwd or Path.cwd(), self.folder) if self.folder else cwd

    def with_gpus(self, gpus: int) -> "PythonCommand":
        """Return the command on nodes that have ``gpus`` in all, for each of which a launcher may start a process."""
        return replace(self, local_processes=self.count_devices(gpus)) if self.per_gpu else self

    def count_devices(self, gpus: int) -> int:
        """Return the GPUs that the command sees on a node, of ``gpus`` on all nodes."""
        visible = [device for device in dict(self.variables).get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
        return len(visible) or max(1, gpus // self.nodes)


def parse_command(words: tuple[str, ...]) -> PythonCommand:
    """Split a command as typed into interpreter, script and launcher options.

    Raises:
        InvalidInput: There is no command, or no such interpreter or script.
        Untraceable: The command does not start Python.
    """
    command = read_command(words)
    if not command.is_module and not is_file(str(Path(command.folder, command.target))):
        raise InvalidInput(f"{command.target!r} cannot be traced: there is no such file; check the path")
    is_launcher = Path(command.python).name in LAUNCHERS
    if command.prefix:
        _find_program(command.prefix[0])
        return replace(command, python="python" if is_launcher else command.python)
    return replace(command, python=(_launcher_python if is_launcher else _find_program)(command.python))


def read_command(words: tuple[str, ...]) -> PythonCommand:
    """Return ``words`` as ``parse_command`` does; neither the interpreter nor the script need be on this machine.

    Raises as ``parse_command``.
    """
    if not words:
        raise InvalidInput("there is no command to trace: write it after --, such as -- python train.py")
    program, arguments = Path(words[0]).name, list(words[1:])
    if program == "env" or _is_assignment(words[0]):
        return _with_variables(words)
    if program in SHELLS or program.endswith(".sh"):
        return _read_shell(program, arguments if program in SHELLS else list(words))
    inner = _find_inner(words) if program in (*TASK_LAUNCHERS, *WRAPPERS, *ENVIRONMENTS) else None
    return _unwrap(words[:inner], words[inner:]) if inner else _read_start(words, program, arguments)


def _read_start(words: Sequence[str], program: str, arguments: list[str]) -> PythonCommand:
    """Read a command that begins with a launcher, an interpreter or a script."""
    if program in LAUNCHERS:
        if program == "accelerate" and arguments[:1] != ["launch"]:
            raise Untraceable(f"'accelerate {' '.join(arguments[:1])}' trains nothing: use 'accelerate launch'")
        return _parse_launcher(words[0], arguments[program == "accelerate" :], program)
    if program in ("lightning", "fabric") and "run" in arguments[:1]:
        return _read_fabric(arguments[1:])
    if program.startswith(("python", "pypy")):
        return _parse_python(words[0], arguments)
    if program in CONTAINERS:
        raise Untraceable(f"{program!r} runs the job in a container: start leadline in that container, on its command")
    if words[0].endswith(".py"):
        return PythonCommand("python3", words[0], tuple(arguments))
    if interpreter := _interpreter_of(file := shutil.which(words[0]) or words[0]):
        return PythonCommand(interpreter, file, tuple(arguments))
    raise Untraceable(
        f"{words[0]!r} is not Python: give the command that starts it, such as python train.py or torchrun train.py"
    )


def _interpreter_of(program: str) -> str:
    """Return the Python that the first line of a program names, as of one that pip installs; empty for any other."""
    if not is_file(Path(program)):
        return ""
    try:
        with Path(program).open("rb") as file:
            first = file.readline(1000).decode("utf-8", "replace")
    except OSError:
        return ""
    words = first[2:].split() if first.startswith("#!") else []
    words = words[1:] if words and Path(words[0]).name == "env" else words
    return words[0] if words and Path(words[0]).name.startswith(("python", "pypy")) else ""


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None


def _with_variables(words: Sequence[str]) -> PythonCommand:
    """Read ``env A=B COMMAND`` or ``A=B COMMAND``."""
    words_left = list(words[1:] if Path(words[0]).name == "env" else words)
    variables: dict[str, str] = {}
    while words_left and (words_left[0].startswith("-") or _is_assignment(words_left[0])):
        name, joined, value = words_left[0].partition("=")
        if not name.startswith("-") and joined:
            variables[name] = value
        words_left = words_left[2 if words_left[0] in ("-u", "-C") else 1 :]
    command = read_command(tuple(words_left))
    return replace(command, variables=(*variables.items(), *command.variables))


def _read_shell(shell: str, arguments: list[str]) -> PythonCommand:
    """Read the Python command of a shell script, or of the text after ``-c``."""
    options = [word for word in arguments if word.startswith("-")]
    if any(re.fullmatch(r"-\w*c", option) for option in options):
        place = next(place for place, word in enumerate(arguments) if re.fullmatch(r"-\w*c", word))
        call = read_script(" ".join(arguments[place + 1 : place + 2]), f"{shell} -c", arguments[place + 2 :])
    else:
        while arguments and arguments[0].startswith("-"):
            arguments = arguments[1:]
        if not arguments:
            raise InvalidInput(f"the command names no script: write it as {shell} train.sh")
        if not is_file(arguments[0]):
            raise InvalidInput(f"{arguments[0]!r} cannot be traced: there is no such file; check the path")
        call = read_script(read_input_text(Path(arguments[0])), arguments[0], arguments)
    command = read_command(call.words)
    folder = str(Path(call.folder, command.folder)) if call.folder else command.folder
    return replace(command, variables=(*call.variables, *command.variables), folder=folder)


def _find_inner(words: Sequence[str]) -> int | None:
    """Return the place of the command that a wrapping program starts."""
    place = 1
    while place < len(words):
        word = words[place]
        if word in ("-m", "--module"):  # `uv run -m MODULE`
            return place
        if word in WRAPPER_VALUES and Path(words[0]).name in ENVIRONMENTS:
            place += 2
        elif _starts_program(word):
            return place
        else:
            place += 1
    return None


def _unwrap(wrapper: Sequence[str], words: Sequence[str]) -> PythonCommand:
    """Return the command inside a wrapping program, which stays before it if it has an environment of its own."""
    program = Path(wrapper[0]).name
    command = read_command(tuple(words) if words[0] not in ("-m", "--module") else ("python", "-m", *words[1:]))
    if program in ENVIRONMENTS:
        python = "python" if command.python == "python3" else command.python
        return replace(command, python=python, prefix=(*wrapper, *command.prefix))
    if program in TASK_LAUNCHERS:
        # `-N` of Open MPI counts processes a node, not nodes.
        node_options = ("--nodes", "-N") if program == "srun" else ("--nodes",)
        return _add_tasks(command, wrapper[1:], node_options, program)
    return command


def _read_fabric(arguments: list[str]) -> PythonCommand:
    """Read the command of Lightning Fabric's launcher."""
    place = next((place for place, word in enumerate(arguments) if word.endswith(".py")), None)
    if place is None:
        raise InvalidInput("the launcher's command names no script: write it as fabric run --devices=4 train.py")
    options_given, following = arguments[:place], dict(pairwise(arguments[:place]))
    names = ("accelerator", "strategy", "devices", "num-nodes", "precision")
    values = {name: following.get(f"--{name}") or _joined_value(options_given, f"--{name}") for name in names}
    # Its processes read the options from these variables.
    variables = {f"LT_{name.upper().replace('-', '_')}": value for name, value in values.items() if value}
    devices, per_gpu = values["devices"] or "1", "--devices" if values["devices"] in ("auto", "-1") else ""
    listed = len([device for device in devices.split(",") if device]) if "," in devices else 0
    return PythonCommand(
        "python3", arguments[place], tuple(arguments[place + 1 :]), per_gpu=per_gpu, launcher="torchrun",
        local_processes=listed or (1 if per_gpu else _process_count("--devices", devices)),
        nodes=_process_count("--num-nodes", values["num-nodes"] or "1"),
        needs_gpus=values["accelerator"] in ("gpu", "cuda"), variables=(("LT_CLI_USED", "1"), *variables.items()),
    )  # fmt: skip


def _joined_value(arguments: Sequence[str], name: str) -> str:
    return next((word.partition("=")[2] for word in arguments if word.startswith(f"{name}=")), "")


def _starts_program(word: str) -> bool:
    name = Path(word).name
    programs = (*LAUNCHERS, *ENVIRONMENTS, *WRAPPERS, *CONTAINERS, *SHELLS, "env", "fabric", "lightning")
    return name in programs or name.startswith(("python", "pypy")) or name.endswith((".py", ".sh"))


def _add_tasks(
    command: PythonCommand, options: Sequence[str], node_options: tuple[str, ...], program: str
) -> PythonCommand:
    """Return ``command`` with a process for each GPU that the ``options`` of a task launcher ask for, if any."""
    nodes = _number_of(options, *node_options) or 1
    tasks = _number_of(options, "-n", "--ntasks", "-np") or nodes * (_number_of(options, "--ntasks-per-node") or 1)
    per_node = _number_of(options, "--gpus-per-node") or _number_of(options, "--gres", of="gpu")
    per_task = _number_of(options, "--gpus-per-task")
    gpus = _number_of(options, "--gpus", "-G") or (per_node or 0) * nodes or (per_task or 0) * tasks
    if not gpus:
        return command
    nodes = max(nodes, command.nodes)
    launcher = command.launcher or program
    return replace(
        command, local_processes=-(-gpus // nodes), nodes=nodes, needs_gpus=True, launcher=launcher, per_gpu=""
    )


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
    command = _read_target(python, arguments)
    switches = takewhile(lambda word: word.startswith("-") and word != "-m", arguments)
    level = sum(word.count("O") for word in switches if not word.startswith("--"))
    return replace(command, variables=(*command.variables, ("PYTHONOPTIMIZE", str(level)))) if level else command


def _read_target(python: str, arguments: list[str]) -> PythonCommand:
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
            command = _parse_launcher(python, arguments[2:], arguments[1].partition(".")[0])
            passes_rank = arguments[1].endswith(".launch") and not {"--use_env", "--use-env"} & set(command.options)
            return (
                replace(command, argv=("--local-rank=0", *command.argv))
                if passes_rank and "torch" in arguments[1]
                else command
            )
        return PythonCommand(python, arguments[1], tuple(arguments[2:]), is_module=True)
    return PythonCommand(python, arguments[0], tuple(arguments[1:]))


def _parse_launcher(python: str, arguments: list[str], launcher: str) -> PythonCommand:
    """Read a launcher's own options, then its script."""
    processes, nodes, whole = 0, 0, arguments
    per_gpu = {"deepspeed": "deepspeed"}.get(launcher, "")
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
            per_gpu = f"{name}={value}" if value in ("gpu", "auto") else ""
            processes = _process_count(name, value)
            needs_gpus, on_cpus = needs_gpus or value not in ("auto", "cpu"), on_cpus or value == "cpu"
        elif name in NODE_OPTIONS:
            nodes = _process_count(name, value.partition(":")[2] or value)
        arguments = arguments[2:] if takes_value else arguments[1:]
    if not arguments:
        raise InvalidInput("the launcher's command names no script: write it as torchrun --nproc_per_node=4 train.py")
    options = tuple(whole[: len(whole) - len(arguments)])
    script, argv = arguments[0], tuple(arguments[1:])
    if launcher == "accelerate":
        settings = _accelerate_settings(options)
        processes, nodes = processes or settings.get("num_processes", 0), nodes or settings.get("num_machines", 1)
        per_gpu = "" if processes or on_cpus else "accelerate launch"
        processes = -(-max(processes, 1) // nodes)  # it is told the processes of all machines
    if launcher == "deepspeed" and "--no_local_rank" not in options:
        argv = ("--local_rank=0", *argv)
    return PythonCommand(
        python, script, argv, is_module, max(processes, 1), max(nodes, 1), needs_gpus and not on_cpus,
        "" if on_cpus else per_gpu, "torchrun" if launcher == "torch" else launcher, options,
    )  # fmt: skip


def _accelerate_settings(options: Sequence[str]) -> dict[str, int]:
    """Return the counts in the configuration file of ``accelerate launch``, if it has one."""
    named = _joined_value(options, "--config_file") or dict(pairwise(options)).get("--config_file")
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    path = Path(named or f"{home}/accelerate/default_config.yaml").expanduser()
    if not is_file(str(path)):
        return {}
    text = read_input_text(path)
    lines = re.findall(r"^\s*\"?(num_processes|num_machines)\"?\s*:\s*(\d{1,9})\b", text, re.MULTILINE)
    return {name: int(number) for name, number in lines}


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

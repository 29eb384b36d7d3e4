"""Processes that a script starts: the first rank runs here, in place of all ranks.

A rank is a process that trains. Other processes, such as producers of data, start as they would.
"""

import importlib
import importlib.abc
import importlib.machinery
import math
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.queues
import multiprocessing.synchronize
import os
import shlex
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Sequence

import torch

from leadline.graphs.torch.worker.import_hooks import after_import
from leadline.graphs.torch.worker.libraries import user_frames
from leadline.graphs.torch.worker.loops import waiting_frames
from leadline.graphs.torch.worker.pools import replace_pools, start_late
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession
from leadline.graphs.torch.worker.training_code import script_folder, trains

STARTERS = ("torchrun", "accelerate", "deepspeed", "lightning", "fabric")
BLOCKING: Sequence[Any] = (
    (multiprocessing.queues.Queue, "get"), (multiprocessing.queues.SimpleQueue, "get"),
    (multiprocessing.connection.Connection, "recv"), (multiprocessing.connection.Connection, "poll"),
    (multiprocessing.synchronize.Event, "wait"), (multiprocessing.synchronize.Condition, "wait"),
)  # fmt: skip
"""Calls with which a script waits for its processes."""


def install_process_starts(session: TraceSession) -> None:
    """Run the first of the ranks that a script starts in this process, and none of the others."""
    ranks = _Ranks(session)
    # The package's attribute of this name is a function.
    modules: List[Any] = [torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]]
    for module in modules:
        module.start_processes = ranks.start_processes
    after_import("torch.distributed.launcher.api", ranks.replace_elastic_launch)
    for package in ("lightning.fabric", "lightning_fabric"):
        after_import(f"{package}.utilities.device_parser", ranks.allow_devices)
    ranks.replace_process_methods()
    replace_pools(ranks)
    after_import("torch.multiprocessing.pool", lambda module: start_late(module.Pool))
    ranks.replace_popen()


def apply_accelerate_options(options: Sequence[str], script: str) -> None:
    """Set the variables by which ``accelerate launch`` tells its options and its configuration file to a script."""
    launch: Any = importlib.import_module("accelerate.commands.launch")
    environments: Any = importlib.import_module("accelerate.utils.launch")
    args, _, _ = launch._validate_launch_command(launch.launch_command_parser().parse_args([*options, script]))
    if args.use_deepspeed:
        settings = environments.prepare_deepspeed_cmd_env(args)[1]
    elif args.use_fsdp or args.multi_gpu:
        settings = environments.prepare_multi_gpu_env(args)
    else:
        settings = environments.prepare_simple_launcher_cmd_env(args)[1]
    kinds = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
    os.environ.update({name: value for name, value in settings.items() if name.startswith(kinds)})


class _Ranks:
    """The processes of a script that would train."""

    def __init__(self, session: TraceSession) -> None:
        self.session, self.devices = session, session.local_size
        self.waiting: List[Any] = []
        self.ended: Dict[int, bool] = {}
        session.at_exit.append(self.run_first)

    def start_processes(self, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        """Call ``fn(0, *args)`` in place of ``nprocs`` processes."""
        self.announce(nprocs)
        fn(0, *args)
        return None if join else SimpleNamespace(join=lambda *_, **__: True, processes=[], pids=list)

    def announce(self, processes: int) -> None:
        """Note how many processes the first stands for, each with a GPU of its own."""
        session = self.session
        sentence = f"the script starts {processes} processes: the first was traced in place of all"
        if processes == self.devices and session.devices_counted:
            sentence += f" (the simulated machine has {processes} GPUs; --gpus sets another number)"
        session.note(sentence)
        session.local_size = max(session.local_size, processes)
        session.world_size = max(session.world_size, processes)

    def replace_elastic_launch(self, module: Any) -> None:
        """Run the function of PyTorch's elastic launcher as its first process."""

        def launch(config: Any, entrypoint: Any, args: Any, **_: Any) -> Dict[int, Any]:
            processes, nodes = config.nproc_per_node, config.max_nodes
            if not callable(entrypoint):
                raise ScriptFailure(f"the script launches {entrypoint!r}: trace that with torchrun instead")
            self.announce(processes)
            self.session.world_size = processes * nodes
            sizes = {"WORLD_SIZE": processes * nodes, "LOCAL_WORLD_SIZE": processes, "GROUP_WORLD_SIZE": nodes}
            ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), 0)
            os.environ.update({name: str(value) for name, value in {**sizes, **ranks}.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
            return {0: entrypoint(*args)}

        module.launch_agent = launch

    def allow_devices(self, module: Any) -> None:
        """Give the simulated machine the GPUs that a Lightning script asks for by number."""
        original = module._sanitize_gpu_ids

        def sanitize(gpus: Any, *args: Any, **kwargs: Any) -> Any:
            self.session.local_size = max(self.session.local_size, 1 + max(gpus, default=0))
            return original(gpus, *args, **kwargs)

        module._sanitize_gpu_ids = sanitize

    def replace_process_methods(self) -> None:
        """Let ranks wait until the script waits for them: by then it has started all of them."""
        process = multiprocessing.process.BaseProcess
        start, join, is_alive = process.start, process.join, process.is_alive
        exitcode, terminate = process.exitcode.fget, process.terminate  # type: ignore[attr-defined]

        def start_unless_rank(this: Any) -> None:
            target = getattr(this, "_target", None) or this.run
            if not trains(target):
                start(this)
                return
            self.waiting.append(this)
            self.ended[id(this)] = False

        def for_rank(rank_answer: Any, original: Any, *, runs: bool = True) -> Any:
            def call(this: Any, *args: Any, **kwargs: Any) -> Any:
                if id(this) not in self.ended:
                    return original(this, *args, **kwargs)
                if runs:
                    self.run_first()
                return rank_answer

            return call

        changed: Any = process
        changed.start = start_unless_rank
        changed.join, changed.is_alive = for_rank(None, join), for_rank(False, is_alive)
        changed.terminate = for_rank(None, terminate, runs=False)
        changed.exitcode = property(for_rank(0, exitcode))
        for owner, name in BLOCKING:
            setattr(owner, name, self._after_first(getattr(owner, name)))
        changed = multiprocessing.synchronize.Barrier
        changed.wait = lambda *_, **__: 0

    def _after_first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.run_first()
            return original(*args, **kwargs)

        return call

    def run_first(self, *, in_loop: bool = True) -> None:
        """Run the first of the waiting ranks to its end. The others count as ended with it.

        ``in_loop``: The user's innermost loop waits for one process after the other.
        """
        is_main = threading.current_thread() is threading.main_thread() and os.getpid() == self.session.process
        if not self.waiting or not is_main:
            return
        first, *others = self.waiting
        tasks, count = len(self.waiting), min(len(self.waiting), getattr(first, "processes", len(self.waiting)))
        self.waiting.clear()
        if tasks > count:
            rounds = math.ceil(tasks / count)
            self.session.note(f"the {tasks} tasks of a pool are assumed to be {rounds} rounds: the steps are of one")
        self.session.note(f"the script starts {count} training processes: the first was traced in place of all")
        waiting = next(user_frames(script_folder()), None)
        if waiting is not None and count > 1 and in_loop:
            waiting_frames.append(waiting)
        try:
            first.run()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:
            waiting_frames.clear()
            if count > 1 and not torch.distributed.is_initialized():
                self.session.low_confidence = True
                self.session.note(
                    f"the {count} training processes form no process group: where they share a GPU, a step takes longer"
                )
        for rank in others:
            if hasattr(rank, "end_with"):
                rank.end_with(first.result())

    def replace_popen(self) -> None:
        """Leave out further ranks, which start as programs, and note programs that may train."""
        ranks = self

        class Popen(subprocess.Popen):  # type: ignore[type-arg]
            """A program. A further rank of this job is one that does nothing."""

            def __init__(self, args: Any, *positional: Any, **settings: Any) -> None:
                words = _words(args)
                if int((settings.get("env") or {}).get("LOCAL_RANK", "0") or 0) > 0:
                    size = int(settings["env"].get("WORLD_SIZE", "1"))
                    ranks.session.world_size = max(ranks.session.world_size, size)
                    args, positional, settings = ["true"], (), {}
                elif _starts_python(words):
                    ranks.session.children.append((" ".join(words)[:100], _location()))
                super().__init__(args, *positional, **settings)

        subprocess.Popen = Popen  # type: ignore[misc]


def _words(args: Any) -> List[str]:
    if isinstance(args, (str, bytes)):
        try:
            return shlex.split(os.fsdecode(args))
        except ValueError:
            return [os.fsdecode(args)]
    return [os.fsdecode(word) for word in ([args] if isinstance(args, os.PathLike) else args)]


def _starts_python(words: Sequence[str]) -> bool:
    """Return whether a command runs a Python script, module or launcher."""
    names = [os.path.basename(word) for word in words]
    pythons = [place for place, name in enumerate(names) if name.startswith("python")]
    runs = any(word == "-m" or word.endswith(".py") for place in pythons[:1] for word in words[place + 1 :])
    return runs or any(name in STARTERS for name in names[:1])


def _location() -> str:
    """Return the user's line that is running."""
    frame = next(user_frames(script_folder()), None)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""

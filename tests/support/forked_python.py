"""Run Python scripts in forks of a process that has imported torch, which takes longer than most traces."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch", "sympy", "jax"])


def run_forked(argv, *, env=None, cwd=None, stdin=None, timeout_s=None):
    """Run a command as ``leadline.execution.processes.run_process`` does (implements ``ProcessRunner``).

    Only ``python SCRIPT.py ARGUMENTS`` with this interpreter starts in a fork.
    """
    from leadline.core.processes import CompletedProcess
    from leadline.execution.processes import run_process

    if argv[0] != sys.executable or not argv[1].endswith(".py") or stdin is not None:
        return run_process(argv, env=env, cwd=cwd, stdin=stdin, timeout_s=timeout_s)
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdout", "stderr")]
        environment = {**os.environ, **(env or {})}
        task = (argv[1:], environment, cwd or Path.cwd(), streams, _fresh_path())
        fork = FORKS.Process(target=_run_script, args=task)
        fork.start()
        fork.join(timeout_s)
        timed_out = fork.is_alive()
        if timed_out:
            os.killpg(fork.pid, signal.SIGKILL)
            fork.join()
        stdout, stderr = (stream.read_text(encoding="utf-8", errors="replace") for stream in streams)
        return CompletedProcess(fork.exitcode, stdout, stderr, timed_out)


@cache
def _fresh_path():
    """Return where a fresh interpreter looks for modules, without the folder of its script."""
    code = "import sys; print(*sys.path[1:], sep='\\n')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def _run_script(argv, environment, cwd, streams, path):
    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = list(argv)
    added = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [str(Path(argv[0]).parent), *added, *path]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "leadline", "benchmarks")]:
        del sys.modules[name]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runpy.run_path(argv[0], run_name="__main__")

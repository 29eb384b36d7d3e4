"""Run a worker in the user's own Python, and read its answer."""

import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.workload import Workload

BOOTSTRAP = Path(__file__).parent / "torch" / "worker" / "bootstrap.py"


def function_request(workload: Workload, kind: str, example: str) -> dict[str, Any]:
    """Return the part of a request that describes a function of the user's and its inputs.

    Raises:
        InvalidInput: The reference names no file.
    """
    path, _, name = workload.model.reference.rpartition(":")
    if not path or not Path(path).is_file():
        raise InvalidInput(f"{workload.model.reference!r} names no {kind}: write it as {example}:build")
    inputs = [(list(shape.shape), shape.dtype) for shape in workload.inputs]
    return {"target": path, "function": name, "inputs": inputs, "phase": workload.phase.value}


def run_worker(
    request: dict[str, Any], *, python: str, runner: ProcessRunner, env: dict[str, str], cwd: Path | None = None
) -> dict[str, Any]:
    """Let a worker carry out a request in ``python``, and return its answer or a ``failure`` if it gives none.

    A request names the ``worker``'s module and the user's file or module (``target``). ``wall_s`` limits the time, and
    ``without`` may name features of the kernel to confine the worker without.
    """
    with tempfile.TemporaryDirectory(prefix="leadline-trace-") as folder:
        request_file, answer_file = Path(folder, "request.json"), Path(folder, "answer.json")
        document = {"without": [], **request, "answer": str(answer_file)}
        request_file.write_text(json.dumps(document), encoding="utf-8")
        completed = runner([python, str(BOOTSTRAP), str(request_file)], env=env, cwd=cwd, timeout_s=request["wall_s"])
        if answer_file.is_file():
            answer: dict[str, Any] = msgspec.json.decode(answer_file.read_bytes())
            return answer
        return {"failure": {"reason": _exit_reason(completed, request["target"], request["wall_s"])}}


def raise_failure(answer: dict[str, Any]) -> None:
    """Raise ``Untraceable`` with the reason of a worker's failure and the user's line, if it failed."""
    if failure := answer.get("failure"):
        raise Untraceable(failure["reason"], failure.get("location"))


def _exit_reason(completed: CompletedProcess, target: str, wall_s: float) -> str:
    if completed.timed_out:
        return f"{target} was still running after {wall_s:g} s; make its first steps shorter or smaller"
    last = completed.stderr.strip().rpartition("\n")[2].strip() or "it printed no error"
    return f"the process of {target} ended with exit code {completed.returncode} before it could answer: {last}"

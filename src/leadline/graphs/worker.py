"""Run a worker in the user's own Python, and read its answer."""

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from leadline.core.documents import from_json
from leadline.core.errors import InvalidInput, Untraceable, excerpt
from leadline.core.frozen import Frozen
from leadline.core.graph import LoopFacts, TracedJob
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.workload import Workload
from leadline.files.read import is_file, read_input

LAST_LINES, LONGEST_LINE = 2, 160
"""How much of the output of a failed script a message shows: lines, and characters of each."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

QUIET = {
    "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled", "MPLBACKEND": "Agg",
    "UV_NO_SYNC": "1", "UV_OFFLINE": "1",
}  # fmt: skip
"""Environment of a script's trace: nothing may be written, downloaded, drawn or installed because of it."""
BOOTSTRAP = Path(__file__).parent / "torch" / "worker" / "bootstrap.py"


class WorkerFailure(Frozen):
    """Why there is no trace, the user's line, and how to get one: on the ``cpu``, ``calculated`` there, or by ``jax``.

    ``shows_output`` is true if what the script printed last tells more.
    """

    reason: str
    location: str | None = None
    retry: str | None = None
    shows_output: bool = False


class WorkerAnswer(Frozen):
    """The answer of a worker: a failure, or a job of PyTorch, or the text of a JAX module.

    ``memory`` is what the compiler of a module plans. ``loop`` and ``trains`` are of the script that called a module,
    and ``weights`` the shape and dtype of each array that it takes gradients for.

    ``asks_values``: Values of tensors may decide what the script does, and the trace had none. ``counted`` is
    the worker's ``CountedRun`` of all steps, if they are counted.

    ``confinement`` is the sentence on what the kernel held back; ``harm`` is the same if any harm was possible.
    """

    failure: WorkerFailure | None = None
    job: TracedJob | None = None
    compiled: bool = False
    asks_values: bool = False
    counted: dict[str, Any] | None = None
    text: str = ""
    loop: LoopFacts | None = None
    trains: bool = True
    weights: tuple[tuple[tuple[int, ...], str], ...] = ()
    jax: str = ""
    notes: tuple[str, ...] = ()
    memory: dict[str, int] | None = None
    confinement: str = ""
    harm: str = ""

    def raise_failure(self) -> None:
        """Raise ``Untraceable`` with the reason, the user's line and the possible harms, if the worker failed."""
        if self.failure:
            failure = self.failure
            raise Untraceable(failure.reason, failure.location, note=self.harm, retry=failure.retry)


def function_request(workload: Workload, kind: str, example: str) -> dict[str, Any]:
    """Return the part of a request that describes a function of the user's and its inputs.

    Raises:
        InvalidInput: The reference names no file.
    """
    path, _, name = workload.model.reference.rpartition(":")
    if not workload.model.library and not is_file(path):
        raise InvalidInput(f"{workload.model.reference!r} names no {kind}: write it as {example}:build")
    inputs = [(list(shape.shape), shape.dtype) for shape in workload.inputs]
    return {"target": path, "function": name, "inputs": inputs, "phase": workload.phase.value}


def run_worker(
    request: dict[str, Any],
    *,
    python: Sequence[str],
    runner: ProcessRunner,
    env: dict[str, str],
    cwd: Path | None = None,
) -> WorkerAnswer:
    """Let a worker carry out a request, and return its answer, a failure if it gives none.

    ``python`` are the words that start its interpreter.

    A request names the ``worker``'s module and the user's file or module (``target``). ``wall_s`` limits the time.
    ``without`` names features of the kernel to confine the worker without: tests take them away.
    """
    target = request["target"]
    with tempfile.TemporaryDirectory(prefix="leadline-trace-") as folder:
        request_file, answer_file = Path(folder, "request.json"), Path(folder, "answer.json")
        request_file.write_text(json.dumps({"without": [], **request, "answer": str(answer_file)}), encoding="utf-8")
        completed = runner([*python, str(BOOTSTRAP), str(request_file)], env=env, cwd=cwd, timeout_s=request["wall_s"])
        answer, confined = (_read(file, target) for file in (answer_file, answer_file.with_name("confinement.json")))
    if not (answer.failure or answer.job or answer.text):
        reason = _exit_reason(completed, target, request["wall_s"])
        answer = WorkerAnswer(WorkerFailure(reason, retry="" if _was_killed(completed) else "calculated"))
    failure = answer.failure or confined.failure
    if failure and failure.shows_output and (printed := _last_lines(completed)):
        failure = replace(failure, reason=f"{failure.reason}; it printed last: {printed}")
    return replace(answer, failure=failure, confinement=confined.confinement, harm=confined.harm)


def _read(file: Path, target: str) -> WorkerAnswer:
    """Return the answer in a file, to which the user's code may write; an empty one if there is no file."""
    try:
        label = f"the answer of the trace of {target}"
        return from_json(read_input(file), WorkerAnswer, label=label) if file.is_file() else WorkerAnswer()
    except InvalidInput as error:
        return WorkerAnswer(WorkerFailure(str(error)))


def _was_killed(completed: CompletedProcess) -> bool:
    """Return whether a process was ended for its time or its memory, or from outside; it did not crash then."""
    return completed.timed_out or completed.returncode in {
        code for ended in (SIGKILL, SIGTERM) for code in (-ended, 128 + ended)
    }


def _exit_reason(completed: CompletedProcess, target: str, wall_s: float) -> str:
    if completed.timed_out:
        return f"{target} was still running after {wall_s:g} s; make its first steps shorter or smaller"
    last = _last_lines(completed) or "it printed nothing"
    return f"the process of {target} ended with exit code {completed.returncode} before it could answer: {last}"


def _last_lines(completed: CompletedProcess) -> str:
    """Return the last line of the errors, else of the output, without colors and what a progress bar wrote over."""
    for text in (completed.stderr, completed.stdout):
        lines = (_ANSI.sub("", line).strip().rpartition("\r")[2].strip() for line in text.splitlines())
        if shown := list(filter(None, lines))[-LAST_LINES:]:
            return " / ".join(excerpt(line, LONGEST_LINE) for line in shown)
    return ""

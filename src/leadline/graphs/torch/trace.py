"""Trace the user's own training command or model function in a process of its own environment."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import TracedJob
from leadline.core.processes import CompletedProcess, ProcessRunner
from leadline.core.workload import Precision, Workload
from leadline.graphs.torch.command import PythonCommand, parse_command
from leadline.graphs.torch.compiled_memory import drop_recomputed_tensors

TIMEOUT_S = 180.0
START_S = 60.0
"""Time beyond the script's own for importing torch and writing the answer."""

BOOTSTRAP = Path(__file__).parent / "worker" / "bootstrap.py"


def trace_command(
    workload: Workload,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    timeout_s: float = TIMEOUT_S,
    bare: bool = False,
    cwd: Path | None = None,
) -> TracedJob:
    """Run the user's unmodified command for three steps on a pretended device and return what it would run.

    With ``bare`` nothing is recorded and the job is empty: the baseline of the tracer's own cost.

    Raises:
        InvalidInput: the command names no interpreter or script that exists.
        Untraceable: the script failed, or showed no training step; carries the user's line.
    """
    command = parse_command(workload.model.argv)
    request = {
        **_common(device_type, timeout_s, bare),
        "target": command.target,
        "module": command.is_module,
        "argv": list(command.argv),
        "world_size": command.local_processes * command.nodes,
        "local_size": command.local_processes,
    }
    answer = _ask(command.python, request, runner, _environment(command, device_type), cwd)
    failure = answer.get("failure")
    if failure and failure.get("retry") and device_type != failure["retry"]:
        request["device_type"] = failure["retry"]
        answer = _ask(command.python, request, runner, _environment(command, "cpu"), cwd)
        return _noted(_job(answer), failure["reason"])
    return _job(answer)


def trace_function(
    workload: Workload,
    *,
    runner: ProcessRunner,
    device_type: str = "cuda",
    timeout_s: float = TIMEOUT_S,
    python: str | None = None,
    bare: bool = False,
) -> TracedJob:
    """Trace the model that ``file.py:function`` returns on inputs of the workload's shapes.

    Training is a forward pass, the mean of the outputs as the loss, a backward pass and the optimizer; inference is
    the forward pass. ``python`` defaults to the interpreter Leadline runs in.

    Raises:
        InvalidInput: the reference names no such file, or there is no input shape.
        Untraceable: the model cannot be built or run; carries the user's line.
    """
    path, _, name = workload.model.reference.rpartition(":")
    if not path or not Path(path).is_file():
        raise InvalidInput(f"{workload.model.reference!r} names no model function: write it as model.py:build")
    if not workload.inputs:
        raise InvalidInput(f"{workload.model.reference} needs an input shape: give one, such as --input 64x3x224x224")
    precision = workload.precision or Precision.FP32
    request = {
        **_common(device_type, timeout_s, bare),
        "target": path,
        "function": name,
        "inputs": [(list(one.shape), one.dtype) for one in workload.inputs],
        "phase": workload.phase.value,
        "weights": precision.weights if precision.weights != "tf32" else "float32",
        "autocast": precision.compute if precision.autocast else "",
        "optimizer": (workload.optimizer or "adamw"),
        "accumulation": workload.accumulation,
        "checkpointing": workload.checkpointing,
    }
    answer = _ask(python or sys.executable, request, runner, {})
    try:
        return _job(answer)
    except Untraceable as error:
        if error.location is not None or not error.reason.partition(": ")[0].endswith("Error"):
            raise
        given = " and ".join(f"{'x'.join(map(str, one.shape))}:{one.dtype}" for one in workload.inputs)
        raise Untraceable(f"{error.reason}; the model was given {given}: check --input") from error


def _common(device_type: str, timeout_s: float, bare: bool) -> dict[str, Any]:
    if device_type not in ("cuda", "cpu"):
        raise InvalidInput(f"device type {device_type!r} cannot be traced: use cuda or cpu")
    return {
        "device_type": device_type,
        "timeout_s": timeout_s,
        "bare": bare,
        "function": "",
        "module": False,
        "argv": [],
        "world_size": 1,
        "local_size": 1,
        "python_path": [],
    }


def _environment(command: PythonCommand, device_type: str) -> dict[str, str]:
    """Return what a launcher would tell its first process, and no real device."""
    size = command.local_processes * command.nodes
    settings = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "MPLBACKEND": "Agg",
        "LEADLINE_TRACE": device_type,
    }
    if size > 1:
        settings |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(command.local_processes),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
        }
    return settings


def _ask(
    python: str, request: dict[str, Any], runner: ProcessRunner, env: dict[str, str], cwd: Path | None = None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="leadline-trace-") as folder:
        question, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps({**request, "answer": str(answer)}), encoding="utf-8")
        done = runner(
            [python, str(BOOTSTRAP), str(question)], env=env, cwd=cwd, timeout_s=request["timeout_s"] + START_S
        )
        if answer.is_file():
            found: dict[str, Any] = msgspec.json.decode(answer.read_bytes())
            return found
        return {"failure": {"reason": _died(done, request["timeout_s"])}}


def _died(done: CompletedProcess, timeout_s: float) -> str:
    if done.timed_out:
        return f"the script was still busy after {timeout_s + START_S:g} s; make its first steps shorter"
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    last = said[-1].strip() if said else "it said nothing"
    return f"the traced process ended with exit code {done.returncode} before it could answer: {last}"


def _job(answer: dict[str, Any]) -> TracedJob:
    failure = answer.get("failure")
    if failure:
        raise Untraceable(failure["reason"], failure.get("location"))
    if answer.get("bare"):
        return msgspec.convert({"step": {"ops": ()}}, TracedJob)
    job = msgspec.convert(answer["job"], TracedJob)
    if not answer["job"].get("compiled"):
        return job
    return replace(
        job, step=drop_recomputed_tensors(job.step), longer=tuple(drop_recomputed_tensors(one) for one in job.longer)
    )


def _noted(job: TracedJob, note: str) -> TracedJob:
    return replace(job, notes=(*job.notes, note))

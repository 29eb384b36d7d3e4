"""Trace many models, each in a fork of a process that has imported their packages."""

import faulthandler
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def trace_in_forks(
    target: Path, builder: Path, shape: Sequence[int], *, phase: str = "training", autocast: str = "",
    timeout_s: float, prepare: Callable[[], None], convert: Callable[[Answer], Answer] = lambda answer: answer,
) -> None:  # fmt: skip
    """Trace one step of the model that ``build`` in the file ``builder`` returns, and write it to ``target``.

    Input and weights are float32, and the optimizer is momentum. A model that fails leaves its reason in ``target``;
    one that takes 1.5 times ``timeout_s`` leaves no file. ``prepare`` runs in the fork before the trace, and
    ``convert`` turns the trace into the document that is written.
    """
    scratch = Path(tempfile.mkdtemp(prefix="leadline-trace-models-"))
    request = {
        "device_type": "cuda", "timeout_s": timeout_s, "function": "build", "module": False, "argv": [],
        "world_size": 1, "local_size": 1, "python_path": [], "target": str(builder),
        "inputs": [(list(shape), "float32")], "phase": phase, "weights": "float32", "autocast": autocast,
        "library": "", "optimizer": "momentum", "accumulation": 1, "checkpointing": False,
        "answer": str(scratch / "unused"),
    }  # fmt: skip
    child = os.fork()
    if child == 0:
        try:
            faulthandler.dump_traceback_later(timeout_s * 1.5, exit=True)
            prepare()
            answer = convert(_answer(request))
            (scratch / "answer").write_text(json.dumps(answer), encoding="utf-8")
            os._exit(0)
        finally:
            os._exit(3)
    # the fork must never return into the caller's code, so it ends in os._exit whatever happens
    os.waitpid(child, 0)
    if (scratch / "answer").exists():
        shutil.move(scratch / "answer", target)
    shutil.rmtree(scratch, ignore_errors=True)


def _answer(request: dict[str, Any]) -> Answer:
    """Return the worker's answer, or its failure."""
    from leadline.graphs.torch.worker import main as worker  # noqa: PLC0415 - the tracer's own imports come first
    from leadline.graphs.torch.worker.session import TraceSession  # noqa: PLC0415

    session = TraceSession(policy="cuda")
    session.limit_s = request["timeout_s"]
    try:
        answer: Answer = worker.trace_request(session, request)
    except Exception as error:  # noqa: BLE001 - whatever a model raises is its answer
        return {"failure": worker.failure_document(error)}
    return answer

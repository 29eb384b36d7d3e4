"""Trace many models from one process that has imported their packages: each in a fork, whose answer is a file."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def trace_in_forks(
    target: Path, builder: Path, shape: Sequence[int], *, phase: str = "training", autocast: str = "",
    timeout_s: float, prepare: Callable[[], None], told: Callable[[Answer], Answer] = lambda answer: answer,
) -> None:  # fmt: skip
    """Write what ``told`` makes of one step of the model that ``build`` of the file ``builder`` returns.

    Its input is of ``shape`` in float32, its weights are float32, and it is trained by momentum. ``prepare`` runs in
    the fork before. A model that fails leaves an answer that says why; one that takes far too long leaves none.
    """
    scratch = Path(tempfile.mkdtemp(prefix="leadline-trace-models-"))
    request = {
        "device_type": "cuda", "timeout_s": timeout_s, "bare": False, "function": "build", "module": False, "argv": [],
        "world_size": 1, "local_size": 1, "python_path": [], "target": str(builder),
        "inputs": [(list(shape), "float32")], "phase": phase, "weights": "float32", "autocast": autocast,
        "optimizer": "momentum", "accumulation": 1, "checkpointing": False, "answer": str(scratch / "unused"),
    }  # fmt: skip
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(timeout_s * 1.5))
            prepare()
            answer = told(_answer(request))
            (scratch / "answer").write_text(json.dumps(answer), encoding="utf-8")
            os._exit(0)
        finally:
            os._exit(3)
    os.waitpid(child, 0)
    if (scratch / "answer").exists():
        shutil.move(scratch / "answer", target)
    shutil.rmtree(scratch, ignore_errors=True)


def _answer(request: dict[str, Any]) -> Answer:
    """Return the worker's answer, or its failure."""
    from leadline.graphs.torch.worker import main as worker  # noqa: PLC0415 - the tracer's own imports come first
    from leadline.graphs.torch.worker.session import TraceSession  # noqa: PLC0415

    session = TraceSession(policy="cuda")
    session.deadline = time.monotonic() + request["timeout_s"]
    try:
        answer: Answer = worker.trace_request(session, request)
    except Exception as error:  # noqa: BLE001 - whatever a model raises is its answer
        return {"failure": worker.failure_document(error)}
    return answer

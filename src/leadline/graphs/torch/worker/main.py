"""Run the user's script or model function on the simulated device and write the recorded job."""

import errno
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import re
import runpy
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Dict, NoReturn, Optional

from leadline.graphs.torch.worker.confinement import Confinement
from leadline.graphs.torch.worker.ended_runs import CountedRun
from leadline.graphs.torch.worker.expressions import MOST_COUNT
from leadline.graphs.torch.worker.libraries import last_user_line
from leadline.graphs.torch.worker.session import COMPILER, NoMoreBatches, ScriptFailure, StopTrace, TraceSession
from leadline.graphs.torch.worker.watchdog import Watchdog, time_failure

CALCULATED = "calculated"
"""What may help against a failure: to calculate the first steps on the CPU."""
ORPHAN_S = 120
"""Seconds after its wall-clock limit that a worker ends itself, in case its parent is gone."""


JAX = "jax"
COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""Codes by which messages set colors in a terminal."""
SAME_DEVICE = "Expected all tensors to be on the same device"
"""What PyTorch says of an error that a run on the CPU alone would hide."""
WITHOUT_DATA = ("its data is not allocated yet", "Cannot access data pointer")
"""What PyTorch says when compiled code asks for the memory of a tensor without data."""


def serve(request: Dict[str, Any], confinement: Confinement) -> None:
    """Carry out one request, write its answer (a traced job, or a failure with the user's line) and end the process."""
    faulthandler.dump_traceback_later(request["wall_s"] + ORPHAN_S, exit=True)
    session = TraceSession(policy=request["device_type"], with_values=request.get("values", False))
    session.calculates = request.get("calculates", "")
    session.real = bool(session.calculates)
    session.world_size, session.local_size = request["world_size"], request["local_size"]
    session.limit_s, session.count_s = request["timeout_s"], request.get("count_s", 0.0)
    session.counted = CountedRun.read(request.get("counted"))
    session.caches_refused = confinement.refuses_writes
    try:
        answer = trace_request(session, request)
    except Exception as error:  # noqa: BLE001 - whatever a user's script raises becomes an answer
        answer = {"failure": failure_document(error)}
    if session.recorder is not None:
        _add_requests(answer, session)
    end_with(answer, request)


def _add_requests(answer: Dict[str, Any], session: TraceSession) -> None:
    """Add to an answer whether to run again with values, and how many steps are counted already, or do not retry."""
    from leadline.graphs.torch.worker.computed_values import asks_values, weights_fit

    if session.counted is not None:
        answer["counted"] = session.counted.document()
    if not (session.with_values or session.calculates):
        answer["asks_values"] = asks_values(session, has_failed="failure" in answer)
    if answer.get("failure", {}).get("retry") == CALCULATED and not weights_fit(session):
        del answer["failure"]["retry"]


def end_with(answer: Dict[str, Any], request: Dict[str, Any]) -> NoReturn:
    """Write the answer to a request and end the process."""
    # A whole answer appears at once: the parent may read as soon as the file exists.
    target = Path(request["answer"])
    part = target.with_suffix(".part")
    # A message may hold bytes that are no text, as surrogates, which JSON cannot hold.
    part.write_text(json.dumps(answer, ensure_ascii=False), encoding="utf-8", errors="replace")
    part.replace(target)
    sys.stdout.flush()
    os._exit(0)


def trace_request(session: TraceSession, request: Dict[str, Any]) -> Dict[str, Any]:
    """Trace the script or function of a request and return the answer document."""
    gc.disable()
    before_s = time.process_time()
    try:
        importlib.import_module("torch")
    except ImportError:
        reason = f"{sys.executable} has no torch: name the Python that the job runs with"
        return {"failure": {"reason": reason, "retry": JAX if importlib.util.find_spec(JAX) else None}}
    session.framework_s = time.process_time() - before_s
    from leadline.graphs.torch.worker import compiler

    compiler.postpone_compiler()  # before anything below loads the compiler
    from leadline.graphs.torch.worker import fake_tensors, patches, scratch

    if session.policy == "cuda":
        fake_tensors.claim_device(spare="spare device" not in request.get("without", ()))
    from leadline.graphs.torch.worker.calculated_steps import calculating_device

    patches.define_torchvision_ops()
    scratch.redirect_writes(str(Path(request["answer"]).parent), caches=not session.caches_refused)
    recorder, steps = install_hooks(session)
    gc.enable()
    # Without freezing, collections that scan the framework's own objects take a twentieth of a trace.
    gc.freeze()
    if request["function"]:
        from leadline.graphs.torch.worker.model_function import run_model as run
    else:
        run = _run_script
    # A fake op would load it later, and its time would count as the script's.
    importlib.import_module("torch.fx.experimental.symbolic_shapes")
    session.begin_script()
    session.has_compiler = COMPILER in sys.modules
    # A script that sleeps calls no hook.
    with Watchdog(session, lambda answer: end_with(answer, request)), recorder, calculating_device(session):
        ended = steps.rest.run(lambda: _until_stopped(lambda: run(session, request), session, steps), failure_document)
    window = steps.finish(ended=ended)
    session.facts.setdefault("world_size", session.world_size)
    return _answer(session, recorder, steps, window)


def install_hooks(session: TraceSession) -> Any:
    """Set up the simulated device and all hooks, and return the recorder and the step watcher."""
    from leadline.graphs.torch.worker import (
        calculated_steps,
        computed_values,
        distributed,
        extensions,
        fake_cuda,
        patches,
        processes,
        rnn,
        sparse,
        stand_ins,
        tensor_methods,
    )
    from leadline.graphs.torch.worker.recorder import Recorder
    from leadline.graphs.torch.worker.step_watcher import StepWatcher

    kind = computed_values.ValuedRecorder if session.with_values else Recorder
    recorder = session.recorder = (calculated_steps.CalculatingRecorder if session.calculates else kind)(session)
    if session.policy == "cuda":
        fake_cuda.install_fake_cuda(session)
    tensor_methods.install_tensor_methods(session)
    patches.install_patches(session)
    rnn.install_recurrent_layers(session)
    sparse.install_sparse_matrices(session)
    stand_ins.install_stand_ins(session)
    extensions.install_extensions(session)
    distributed.install_process_groups(session)
    processes.install_process_starts(session)
    steps = StepWatcher(session, recorder)
    steps.install()
    return recorder, steps


def _until_stopped(run: Any, session: TraceSession, steps: Any) -> bool:
    """Run the script. An error after training, while evaluation is traced, only becomes a note.

    Return whether the script came to its own end.
    """
    try:
        run()
    except StopTrace:
        return False
    except SystemExit as end:
        if end.code not in (None, 0) and not steps.evaluating:
            raise ScriptFailure(exit_reason(end.code), shows_output=True) from end
    except Exception as error:
        if not steps.evaluating or steps.steady is None:
            raise
        if steps.evaluation is None:
            steps.evaluated = 0  # the evaluation did not end
        if NoMoreBatches in (type(error), type(error.__cause__)):  # the script, or a generator, reads by `next`
            return False
        failure = failure_document(error)
        reason = failure["reason"].rpartition(";")[0]
        session.note(f"code after training is not traced: {failure['location'] or 'the script'} raised {reason}")
    return not steps.evaluating


def _run_script(session: TraceSession, request: Dict[str, Any]) -> None:
    from leadline.graphs.torch.worker import loop_hooks, processes

    if request["accelerate"] is not None:
        processes.apply_accelerate_options(request["accelerate"], request["target"])
    loop_hooks.watch_loop(None if request["module"] else request["target"])
    run_target(request)
    for run_last in session.at_exit:
        run_last()


def run_target(request: Dict[str, Any]) -> None:
    """Run the script or module of a request as Python would."""
    target = request["target"]
    sys.argv = [target, *request["argv"]]
    sys.path.insert(0, str(Path.cwd() if request["module"] else Path(target).resolve().parent))
    from leadline.graphs.torch.worker import iterated

    iterated.record_iterables()
    if request["module"]:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target, run_name="__main__")


def _answer(session: TraceSession, recorder: Any, steps: Any, window: Optional[Any]) -> Dict[str, Any]:
    from leadline.graphs.torch.worker import report

    if window is None or not window.ops or (session.children and not (steps.backwards or steps.counts)):
        return {"failure": _no_step_failure(session, steps)}
    if session.missing_parameters:
        whole = session.facts["model_parameters"] = window.parameters + session.missing_parameters
        session.note(f"this rank holds {window.parameters:,} of the {whole:,} parameters of the model")
    job = {
        "step": report.graph_document(session, recorder, window),
        "loop": _loop_document(session, steps),
        "notes": session.notes,
        "low_confidence": session.low_confidence,
    }
    if steps.largest is not None:
        job["longer"] = [report.graph_document(session, recorder, steps.largest)]
    if steps.evaluation is not None and steps.evaluation.ops:
        job["evaluation"] = report.graph_document(session, recorder, steps.evaluation, stage="evaluation")
    return {"job": job, "compiled": session.compiled}


def _loop_document(session: TraceSession, steps: Any) -> Dict[str, Any]:
    from leadline.graphs.torch.worker import loop_hooks

    if session.counted is None and steps.rest.has_begun:
        read = loop_hooks.read_facts()
        per_epoch, epochs = read.get("steps_per_epoch"), read.get("epochs")
        is_unsure = any("is assumed to train" in note for note in read["notes"])
        expected = None if per_epoch is None or epochs is None or is_unsure else per_epoch * epochs
        session.counted = steps.rest.wait(expected, trains_later=loop_hooks.trains_later())
    facts = {
        **loop_hooks.read_facts(session.counted),
        **session.facts,
        **steps.loading(),
        **steps.work.facts(steps.rest.work_s()),
    }
    for sentence in facts.pop("notes", ()):
        session.note(sentence)
    if facts.pop("one_batch", False):
        facts.pop("loading", None)  # the steps load nothing
    if steps.evaluation is not None and steps.evaluation_batches and facts.get("evaluation_batches_per_epoch") is None:
        facts["evaluation_batches_per_epoch"] = steps.evaluation_batches
    if not steps.optimizers:
        facts["loads_compiler"] = True  # no optimizer loads it in the first step
    elif not facts.get("optimizer"):
        facts["optimizer"] = type(steps.optimizers[0]).__name__.lower()
    if steps.counts and steps.backwards and not facts.get("accumulation"):
        facts["accumulation"] = max(1, round(steps.backwards / sum(steps.counts.values())))
    # A trainer's own settings and lengths may be infinite, which JSON cannot hold.
    numbers = {name: fact for name, fact in facts.items() if isinstance(fact, (int, float))}
    return {name: fact for name, fact in facts.items() if abs(numbers.get(name, 0)) <= MOST_COUNT}


def _no_step_failure(session: TraceSession, steps: Any) -> Dict[str, Any]:
    if session.children and not (steps.backwards or steps.counts):
        command, location = session.children[-1]
        reason = f"the script trained in a child process that cannot be traced: trace its command instead ({command})"
        return {"reason": reason, "location": location or None}
    if steps.backwards and session.policy == "cuda" and not steps.recorder.serial:
        return {"reason": "the script trains on the CPU: nothing was put on the GPU", "retry": "cpu"}
    by_jax = {"retry": JAX} if JAX in sys.modules and not (steps.backwards or steps.counts) else {}
    if session.stopped_at or session.is_over:
        return {**time_failure(session), **by_jax}
    if steps.backwards:
        return {"reason": "the script ended without a whole training step; give it data for at least three"}
    reason = "the script ended without a backward pass, an optimizer step or a model call on the device"
    return {"reason": reason, "shows_output": True, **by_jax}


def failure_document(error: BaseException, advice: str = "the trace stopped here") -> Dict[str, Any]:
    """Return the reason of a failure, and the line of the user's own code where it happened."""
    frames = traceback.extract_tb(error.__traceback__)
    location = last_user_line(frames)
    if isinstance(error, SyntaxError) and error.filename:
        location = f"{error.filename}:{error.lineno}"
    if isinstance(error, ScriptFailure):
        return {"reason": str(error), "location": location, "shows_output": error.shows_output, "retry": CALCULATED}
    if any(sentence in str(error) for sentence in WITHOUT_DATA):
        reason = "compiled code reads the values of a tensor, which a trace has not: make it an operator with a shape "
        reason += "rule (torch.library.custom_op and register_fake)"
        return {"reason": reason, "location": location, "retry": CALCULATED}
    is_true = isinstance(error, (ImportError, OSError, SyntaxError)) or SAME_DEVICE in str(error)
    retry = None if is_true else CALCULATED
    message = _shortened(" ".join(COLORS.sub("", str(error)).split())).rstrip(".")
    if isinstance(error, ModuleNotFoundError) and error.name:
        reason = f"the script imports {error.name}, which {sys.executable} does not have: install it there, or start "
        return {"reason": f"{reason}the command with the Python of the job", "location": location}
    if _needs_network(error):
        advice = "the trace has no network, so download what it needs first"
    elif isinstance(error, (ImportError, OSError)) and ".so" in str(error):
        advice = "its compiled part cannot be loaded here: trace where the libraries that it needs are installed"
    elif isinstance(error, FileNotFoundError):
        advice = f"the trace runs in {Path.cwd()} and needs the files that the job reads"
    source = frames[-1].line if frames else ""
    message = message or (f"no message at `{source}`" if source else "no message")  # such as a bare assert
    return {"reason": f"{type(error).__name__}: {message}; {advice}", "location": location, "retry": retry}


def _shortened(message: str, longest: int = 400) -> str:
    """Return the whole sentences of a message that fit, or the beginning of the first if none does."""
    if len(message) <= longest:
        return message
    return message[:longest].rpartition(". ")[0] or message[:longest] + " …"


def exit_reason(code: Any) -> str:
    """Return why a script exited: its code, or the message that it exited with."""
    if isinstance(code, int):
        return f"the script exited with code {code}; run it once by hand to see why"
    return f"the script exited: {' '.join(str(code).split())[:300]}"


def _needs_network(error: Optional[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.ENETUNREACH:
            return True
        reason = getattr(error, "reason", None)  # urllib keeps the cause there
        error = reason if isinstance(reason, OSError) else error.__cause__ or error.__context__
    return False

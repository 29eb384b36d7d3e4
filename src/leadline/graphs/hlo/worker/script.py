"""Run a JAX training script until its jitted step was called a few times, and answer with the lowered step."""

import argparse
import collections
import importlib
import inspect
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, Dict, List

from leadline.graphs.torch.worker import scratch
from leadline.graphs.torch.worker.confinement import Confinement
from leadline.graphs.torch.worker.keras_fit import fit_settings, uncompiled_layers
from leadline.graphs.torch.worker.later_loops import later_training
from leadline.graphs.torch.worker.libraries import record_preloaded
from leadline.graphs.torch.worker.loop_facts import infer_loop_facts
from leadline.graphs.torch.worker.loop_observations import LoopObservations, WatchedStep
from leadline.graphs.torch.worker.loops import enclosing_loops
from leadline.graphs.torch.worker.main import end_with, exit_reason, failure_document, run_target
from leadline.graphs.torch.worker.session import (
    ScriptFailure,
    StopTrace,
    ThreadTimes,
    TraceSession,
    call_after,
    read_times,
)
from leadline.graphs.torch.worker.watchdog import Watchdog, time_failure

STEPS = 8
"""Calls of the step after which a script ends. One is lowered, the others show the loop and the loading time."""
EXTRA_S = 10.0
"""Seconds after the third step in which the others must be called."""
UNCOMPILED = (
    "Keras trains without jax.jit, since JAX cannot compile {layers}: "
    "apply that to the data before fit, or use the PyTorch backend (KERAS_BACKEND=torch)"
)
GRADIENTS_OUTSIDE = (
    "the script takes gradients outside of jax.jit, where JAX runs each operation by itself: "
    "wrap the training step, as in step = jax.jit(step)"
)


def serve(request: Dict[str, Any], confinement: Confinement) -> None:
    """Carry out one request, write its answer (a module with facts of the loop, or a failure) and end the process."""
    session = TraceSession(policy="cuda")
    session.limit_s = request["timeout_s"]
    scratch.redirect_writes(str(Path(request["answer"]).parent), caches=not confinement.refuses_writes)
    try:
        answer = _trace(session, request)
    except Exception as error:  # noqa: BLE001 - whatever a user's script raises becomes an answer
        answer = {"failure": failure_document(error)}
    end_with(answer, request)


def _trace(session: TraceSession, request: Dict[str, Any]) -> Dict[str, Any]:
    before_s = time.process_time()
    try:
        import jax
    except ImportError:
        return {"failure": {"reason": f"{sys.executable} has no jax: name the Python that the job runs with"}}
    session.framework_s = time.process_time() - before_s
    steps = StepWatch(session, None if request["module"] else request["target"])
    _describe_one_device(session, jax)
    record_preloaded()
    session.began = read_times()
    session.begin_script()
    with Watchdog(session, lambda answer: end_with(answer, request)):
        try:
            run_target(request)
            steps.has_ended = True
        except StopTrace:
            pass
        except SystemExit as end:
            steps.has_ended = end.code in (None, 0)
            if not steps.has_ended and not steps.calls:
                raise ScriptFailure(exit_reason(end.code), shows_output=True) from end
    return {**steps.answer(), "jax": jax.__version__}


def _describe_one_device(session: TraceSession, jax: Any) -> None:
    """Let a script that asks for GPUs have the one device of the trace, and start no cluster."""
    for name in ("devices", "local_devices", "device_count", "local_device_count"):
        original = getattr(jax, name)
        setattr(jax, name, lambda *_, original=original, **__: original())
    jax.distributed.initialize = lambda *_, **__: session.note("the step is that of one process with one device")


class StepWatch:
    """Lowers the jitted functions that the script calls, and decides which of them are its step."""

    def __init__(self, session: TraceSession, script: Any) -> None:
        # They need jax.
        self._jitted, gradients, self._inner = (
            importlib.import_module(f"leadline.graphs.hlo.worker.{name}")
            for name in ("jitted", "gradients", "inner_loops")
        )
        self.gradients = gradients.GradientWatch(self._take_gradient)
        self.gradients_outside = 0
        self.uncompiled: List[str] = []
        """Layers of Keras that keep it from compiling its step."""
        self.session = session
        self.loop = LoopObservations(script)
        self.programs: Dict[Any, Any] = {}
        self.calls: List[Any] = []
        self.counts: collections.Counter[int] = collections.Counter()
        self.between: List[ThreadTimes] = []
        self.last: Any = None
        self.third_s = 0.0
        self.has_ended = False
        """The script ran to its end, so that all its steps were seen."""
        self._is_lowering = False
        self._differentiated: Dict[int, List[Any]] = {}
        options = self.loop.options
        call_after(
            argparse.ArgumentParser, "parse_known_args", lambda result, *_, **__: options.update(vars(result[0]))
        )
        self._jitted.replace_jit(self.call, self.gradients)

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Answer a call of the script: lower the function, and return arrays of the shapes of its results."""
        import jax

        leaves, tree = jax.tree.flatten((args, kwargs))
        if self._is_lowering or self._jitted.is_traced(leaves):
            return function.jitted(*args, **kwargs)
        began = read_times()
        self.session.check_time()
        self.session.record_startup_cost()
        program = self._lower(function, args, kwargs, leaves, tree)
        if program.trains and self.last is not None and self.counts[id(program)]:
            self.between.append(began.since(self.last))
        if program.is_cheap:
            result = function.jitted(*args, **kwargs)
            results = jax.tree.leaves(result)
        else:
            results = self._jitted.assumed_results(program, leaves)
            result = jax.tree.unflatten(program.result_tree, results)
        self.calls.append(self._jitted.Call(program, leaves, tree, results))
        self._count(program)
        self.last = read_times()
        return result

    def _lower(self, function: Any, args: Any, kwargs: Any, leaves: List[Any], tree: Any) -> Any:
        key = (id(function.jitted), self._jitted.signature(leaves, tree))
        if key not in self.programs:
            self._is_lowering = True
            self.gradients.start()
            try:
                traced = function.jitted.trace(*args, **kwargs) if hasattr(function.jitted, "trace") else None
                lowered = (traced or function.jitted).lower(*(() if traced else args), **({} if traced else kwargs))
            finally:
                self._is_lowering = False
                # JAX keeps a trace, so the script's own code runs in the first lowering alone.
                arrays = self.gradients.stop()
                differentiated = self._differentiated[id(function.jitted)] = arrays or self._differentiated.get(
                    id(function.jitted), []
                )
            self.programs[key] = self._jitted.Program(
                function.jitted, getattr(function, "__name__", "function"), lowered, is_mapped=function.is_mapped,
                jaxpr=traced and traced.jaxpr, differentiated=differentiated,
            )  # fmt: skip
        return self.programs[key]

    def _take_gradient(self) -> None:
        """Count a gradient that the script takes outside of any function that is lowered."""
        if self._is_lowering or not self._jitted.is_outside():
            return
        self.gradients_outside += 1
        self.uncompiled = uncompiled_layers(inspect.currentframe())
        if self.uncompiled:
            raise StopTrace
        if self.gradients_outside >= STEPS and not any(program.trains for program in self.programs.values()):
            raise StopTrace

    def _count(self, program: Any) -> None:
        self.counts[id(program)] += 1
        count = self.counts[id(program)]
        if count <= 2:
            program.loops = enclosing_loops(self.loop.folder)
            program.later = later_training(self.loop.folder, program.name)
            self.loop.framework.update(fit_settings(inspect.currentframe()))
            if self.loop.framework:
                self.loop.read_calls(inspect.currentframe())
        if not program.trains:
            return
        if count == 3:
            self.third_s = self.session.used_s
        if count >= STEPS or (count >= 3 and self.session.used_s - self.third_s > EXTRA_S):
            raise StopTrace

    def answer(self) -> Dict[str, Any]:
        """Return the module of the step with the facts of its loop, or why there is none."""
        main = max(self.programs.values(), key=lambda program: (program.trains, program.flops), default=None)
        if self.uncompiled:
            return {"failure": {"reason": UNCOMPILED.format(layers=", ".join(self.uncompiled))}}
        if self.gradients_outside:
            if main is None or not main.trains:
                return {"failure": {"reason": GRADIENTS_OUTSIDE}}
            self.session.note("gradients that the script takes outside of jax.jit are not counted")
        if main is None:
            if self.session.stopped_at or self.session.is_over:
                return {"failure": time_failure(self.session)}
            reason = "the script called no function of jax.jit: jit the training step, as in step = jax.jit(step)"
            return {"failure": {"reason": reason, "shows_output": True}}
        # The first call may have arguments of other types, such as a count of steps that is no array yet.
        variants = [program for program in self.programs.values() if program.jitted is main.jitted]
        step = max(variants, key=lambda program: (program.trains, self.counts[id(program)], program.flops))
        calls = self._step_calls(step)
        self._is_lowering = True
        loop = self._training_loop(step)
        self.session.note("an evaluation between the epochs is not counted")
        if step.is_mapped and step.jaxpr is None:
            self.session.note("loops within jax.pmap are unknown: each call of it is assumed to be one step")
        document = self._loop_document(step, loop)
        if loop is not None:
            text, weights = self._jitted.body_text(loop.body), step.weights
        else:
            self.session.note(
                f"the step is {' and '.join(dict.fromkeys(call.program.name for call in calls))}, lowered"
            )
            text = self._jitted.step_text(calls)
            weights = [spec for program in dict.fromkeys(call.program for call in calls) for spec in program.weights]
        return {
            "text": text, "loop": document, "notes": self.session.notes, "trains": step.trains, "weights": weights,
        }  # fmt: skip

    def _training_loop(self, step: Any) -> Any:
        """Return the loop within the step's function that takes training steps, if there is one."""
        if step.jaxpr is None or not step.trains:
            return None
        leaves = next(call.arguments for call in reversed(self.calls) if call.program is step)
        arrays = leaves if len(leaves) == len(step.jaxpr.jaxpr.invars) else []
        loop = self._inner.training_loop(step.jaxpr, arrays)
        if loop is not None:
            self.session.note(f"the step is one trip of the training loop in {step.name}, lowered")
            self.session.note(f"the rest of {step.name}, outside of that loop, is not counted")
        return loop

    def _step_calls(self, step: Any) -> List[Any]:
        """Return the calls of one step, from one call of its main function to the next, without cheap ones."""
        places = [at for at, call in enumerate(self.calls) if call.program is step]
        ends = places[1:] or [places[0] + 1]
        rounds = [self.calls[begin:end] for begin, end in zip(places, ends)]  # noqa: B905 - Python 3.9 has no strict
        shortest = min(rounds[1:] or rounds, key=len)
        return [call for call in shortest if call.program is step or not call.program.is_cheap]

    def _loop_document(self, step: Any, inner: Any) -> Dict[str, Any]:
        self.loop.all_steps = [WatchedStep(step.loops, None, 1)]
        if not self.loop.framework:
            self.loop.later = step.later
        if self.has_ended:
            self.loop.later = ""
        facts = {**infer_loop_facts(self.loop), **self.session.facts}
        notes = facts.pop("notes")
        if self.has_ended and (facts["steps_per_epoch"] is None or not step.loops):
            facts["steps_per_epoch"], facts["epochs"] = self.counts[id(step)], 1
            notes = [f"the script ended after {self.counts[id(step)]} calls of {step.name}"]
        if inner is not None:
            if inner.times is None:
                facts["steps_per_epoch"] = None
                notes.append(f"the trips of the training loop in {step.name} depend on the run: steps are unknown")
            elif facts["steps_per_epoch"] is not None:
                facts["steps_per_epoch"] *= inner.times
                notes.append(f"each call of {step.name} takes {inner.times:,} steps")
        for sentence in notes:
            self.session.note(sentence)
        facts["batch"] = facts.get("batch") or self._batch(step, inner)
        if self.between:
            facts["loading"] = self._loading()
        return {name: fact for name, fact in facts.items() if fact is not None}

    def _batch(self, step: Any, inner: Any) -> Any:
        """Return the samples of a step, from its inputs that are no state."""
        weights = {spec for program in self.programs.values() for spec in program.weights}
        if inner is not None:
            jaxpr = inner.body.jaxpr
            constant = [place < inner.constants for place in range(len(jaxpr.invars))]
            return self._inner.batch_size(jaxpr, weights, constant)
        calls = [call.arguments for call in self.calls if call.program is step]
        if step.jaxpr is None or len(calls[0]) != len(step.jaxpr.jaxpr.invars):
            return self._batch_of_arguments(step)
        constant = [all(leaf is leaves[0] for leaf in leaves) for leaves in zip(*calls)]  # noqa: B905 - Python 3.9
        returned = {id(leaf) for call in self.calls for leaf in call.results}
        state = [id(leaf) in returned for leaf in calls[-1]]
        return self._inner.batch_size(step.jaxpr.jaxpr, weights, constant, state)

    def _batch_of_arguments(self, step: Any) -> Any:
        """Return the first dimension of the largest argument that no result replaces: the others are the state."""
        state = {(tuple(result.shape), result.dtype) for result in step.results}
        arguments = next(call.arguments for call in reversed(self.calls) if call.program is step)
        results = {id(leaf) for call in self.calls for leaf in call.results}
        arrays = [leaf for leaf in arguments if len(getattr(leaf, "shape", ())) and id(leaf) not in results]
        arrays = [leaf for leaf in arrays if (leaf.shape, leaf.dtype) not in state]
        largest = max(arrays, key=lambda leaf: leaf.size, default=None)
        return None if largest is None else int(largest.shape[1 if step.is_mapped and largest.ndim > 1 else 0])

    def _loading(self) -> Dict[str, Any]:
        """Return the time between two steps, which the script takes to make a batch and whatever else it does."""
        whole = read_times().since(self.session.began)
        runnable_s = whole.cpu_s + (whole.queued_s or 0.0)
        return {
            "batch_s": median(times.needed_s for times in self.between),
            "cpu_s": median(times.cpu_s for times in self.between),
            "batches": len(self.between),
            "read_bytes": int(median(times.read_bytes for times in self.between)) // 1024 * 1024,
            "queued_share": None if whole.queued_s is None else whole.queued_s / max(runnable_s, 1e-9),
        }

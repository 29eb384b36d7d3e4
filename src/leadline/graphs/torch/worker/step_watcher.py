"""Find the steps of a training loop, and stop the script once enough of them are recorded."""

import contextlib
import functools
import gc
import sys
import types
from typing import Any, Dict, List, Optional, Set

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from leadline.graphs.torch.worker import loop_hooks, trainers
from leadline.graphs.torch.worker.batches import BatchPlanner, moved_bytes, set_up_worker
from leadline.graphs.torch.worker.ended_runs import CountedRun, Guesses
from leadline.graphs.torch.worker.evaluation_calls import EvaluationCalls
from leadline.graphs.torch.worker.limited_loaders import EVALUATION, INFERENCE, TRAINING, LimitedIterator
from leadline.graphs.torch.worker.load_times import MeasuredLoad, loading_time, loads_per_step
from leadline.graphs.torch.worker.recorder import Recorder
from leadline.graphs.torch.worker.repeated_calls import ALIKE, SAMPLED, RepeatedCalls
from leadline.graphs.torch.worker.rest_of_run import RestOfRun
from leadline.graphs.torch.worker.script_work import ScriptClock
from leadline.graphs.torch.worker.session import NoMoreBatches, StopTrace, TraceSession, call_after
from leadline.graphs.torch.worker.windows import TraceWindow

STEPS = 3
MOST_STEPS = 18
"""Steps after which the watcher no longer waits for an optimizer that never stepped, or for the loop to evaluate."""
LATE_STEPS = 2
"""Steps after the last batch was given: loaders that fetch ahead still hold one."""
EVALUATION_BATCHES = 2
"""Batches of each evaluation loader."""
EVALUATION_S = 30.0
MORE_STEPS = 3
"""Steps after the third for one before which the script did not evaluate the model."""
WORKER_SETTINGS = (
    "num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "pin_memory",
    "pin_memory_device",
)  # fmt: skip
"""Settings of a data loader that a trace leaves out: it loads in its own process."""


class StepWatcher:
    """Watches optimizers, backward passes, outermost module calls and data loaders.

    A step ends when the optimizer that steps most rarely has stepped. Without an optimizer object it ends with a
    backward pass, and without that, with a call of the outermost module.
    """

    def __init__(self, session: TraceSession, recorder: Recorder) -> None:
        self.session = session
        self.recorder = recorder
        self.counts: Dict[int, int] = {}
        self.optimizers: List[Any] = recorder.optimizers
        self.backwards = self.depth = self.calls = self.closed = 0
        self.first: Optional[TraceWindow] = None
        """The first step, with all that came before it but what built the model."""
        self.steady: Optional[TraceWindow] = None
        self.rest = RestOfRun(session, recorder)
        self.called: Optional[TraceWindow] = None
        self.evaluation: Optional[TraceWindow] = None
        self.evaluating = False
        self.training_loaders: Set[int] = set()
        self.evaluated = self.evaluation_batches = self.late = 0
        self.ended = self.called_between = False
        """The training loader gave no more batch, and a module was called after that."""
        self.read = 0
        self.evaluations = EvaluationCalls(recorder)
        self.is_pure = False
        """No evaluation came before the steady step."""
        self.loads: Dict[str, List[MeasuredLoad]] = {name: [] for name in (TRAINING, EVALUATION, INFERENCE)}
        self.step_loads: List[int] = []
        """Training batches that were loaded when each step ended."""
        self.batches = BatchPlanner()
        self.largest: Optional[TraceWindow] = None
        self.repeated = RepeatedCalls(session)
        self.work = ScriptClock(recorder)

    def install(self) -> None:
        """Place the hooks."""
        call_after(torch.optim.Optimizer, "__init__", self._add_optimizer)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._watch_backward()
        self._watch_modules()
        self._watch_loaders()

    def _add_optimizer(self, _: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        self.optimizers.append(optimizer)
        if not self.backwards:
            gc.collect()  # copies that only counted the operations of a model may lie in cycles
            self.recorder.cut()  # the first step is without what built the model

    def finish(self, *, ended: bool) -> Optional[TraceWindow]:
        """Return the steady step, or ``None`` if no whole step was recorded.

        Of a script that ``ended`` by itself it may be the first one.
        """
        # The forward pass of the first step was not recorded if only then bare tensors turned out to train.
        first = self.first if self.session.calculates or not self.session.real else None
        if ended and (self.steady or first) is not None:
            made = self.rest.counts.total()
            if made is not None and not self.rest.has_begun:
                self.session.counted = CountedRun(made, Guesses.TRACED)
            self.steady = self.steady or first
        if self.evaluating and self.evaluated and self.evaluation is None:
            self.evaluation = self.recorder.cut()
        if self.evaluation is None and self.is_pure and self.evaluations.largest is not None:
            self.evaluation = self.evaluations.largest
            loop_hooks.record_evaluation_calls(self.evaluations.number, self.evaluations.period)
        return self.steady or self.called

    def loading(self) -> Dict[str, Any]:
        """Return the loading times of ``LoopFacts``, without the cost of watching."""
        loads = {TRAINING: self.loads[TRAINING] or self.loads[INFERENCE]}
        if self.evaluation is not None:  # otherwise, another epoch followed
            loads[EVALUATION] = self.loads[EVALUATION]
        watching_s, began = self.recorder.watching_cost_s(), self.session.began
        facts = {name: loading_time(measured, watching_s, began) for name, measured in loads.items() if measured}
        if TRAINING in facts and self.step_loads:
            facts[TRAINING]["per_step"] = loads_per_step(self.step_loads)
        return facts

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self.rest.is_fork:
            return
        if self.evaluating and not (self.late or self._expects_evaluation()):
            raise StopTrace
        self.recorder.stage = "optimizer"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.recorder.track_parameter(parameter)
                if parameter.grad is not None:
                    self.recorder.mark(parameter.grad, "gradient")

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.rest.count(id(optimizer))
        if self.rest.is_fork:
            return
        self.session.check_time()
        self.recorder.stage = "forward"
        count = self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        if count <= 2:
            self._mark_state(optimizer)
        rarest = min(self.counts.values())
        waiting = len(self.counts) < len(self.optimizers) and max(self.counts.values()) < MOST_STEPS
        if count == rarest and not (waiting and len(self.counts) == 1 and count == 1):
            self._close(count, waiting)

    def _close(self, count: int, waiting: bool) -> None:
        window = self.recorder.cut()
        if self.evaluating:
            return
        if self.batches.is_planning:
            # One step on planned batches has mean ones, which stand for all; the one on the largest is kept too.
            if self.batches.done(window):
                if (chosen := self.batches.chosen()) is not None:
                    self.steady, self.largest = chosen
                    self.session.note(self.batches.sentence)
                self.start_evaluation()
            return
        self.step_loads.append(len(self.loads[TRAINING]))
        self.work.end_step(self._loaded_s(TRAINING), loop_hooks.step_periods())
        self.closed += 1
        read, self.read = self.read, len(self.loads[INFERENCE])
        is_evaluated = self.evaluations.end_step()
        is_pure = self.read == read and not (is_evaluated or self.batches.is_partial)  # no evaluation came before it
        if count == 1:
            # Steps that ended before this optimizer joined were only a part.
            self.first, self.steady = window if self.closed == 1 else None, None
        elif self.closed > 1 and (self.steady is None or is_pure):
            # The first one spans two steps of an optimizer that may not be the only one.
            self.steady, self.is_pure = window, is_pure
        if count >= STEPS:
            self.rest.called = self.evaluations.made
            self.rest.begin()
        goes_on = is_evaluated and not self.is_pure and count < STEPS + MORE_STEPS
        if count >= STEPS and not (waiting or goes_on or self.rest.is_fork):
            if self.batches.sizes_differ:
                self.batches.plan_after(count)
            else:
                self.start_evaluation()

    def _mark_state(self, optimizer: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self.recorder.mark(value, "optimizer-state")

    def _watch_backward(self) -> None:
        engine = torch.autograd.Variable._execution_engine
        original = engine.run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.evaluating:
                self._stop_if_training()
            self.session.check_time()
            if self.session.policy == "cpu" and not self.recorder.live:
                self.session.real = True
            outer_stage, self.recorder.stage = self.recorder.stage, "backward"
            nested = outer_stage == "backward"
            try:
                return original(*args, **kwargs)
            finally:
                self.recorder.stage = outer_stage
                if not nested:
                    self._after_backward()

        names = ("queue_callback", "is_checkpoint_valid")
        kept = {name: getattr(engine, name) for name in names}
        torch.autograd.Variable._execution_engine = types.SimpleNamespace(run_backward=run, **kept)

    def _stop_if_training(self) -> None:
        """Stop the trace if "evaluation" turns out to be training with a new loader."""
        if self._expects_evaluation():
            return
        # Batches that were fetched ahead may still pass.
        if self.ended and not self.evaluated and self.late < LATE_STEPS:
            self.late += 1
            return
        if self.evaluated <= 1:
            self.evaluation, self.evaluated = None, 0
        raise StopTrace

    def _after_backward(self) -> None:
        self.backwards += 1
        if self.session.policy == "cuda" and not self.recorder.serial and (self.optimizers or self.backwards > 1):
            raise StopTrace  # it trains on the CPU
        for after in self.session.after_backward:
            after()
        if self.optimizers:
            return
        self.rest.count(0)
        self.recorder.mark_gradients()
        window = self.recorder.cut()
        if self.evaluating:
            return
        if self.backwards == 1:
            self.first = window
        if self.backwards >= 2:
            self.steady = window
        if self.backwards > STEPS:
            self.rest.begin()
            if not self.rest.is_fork:
                self.start_evaluation()

    def _watch_modules(self) -> None:
        original = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.rest.is_fork:
                return self.rest.call(original, module, args, kwargs)
            self.session.record_startup_cost()
            is_evaluation = bool(self.optimizers and not self.depth) and self.evaluations.count(module)
            kind = self.repeated.describe(module, args, kwargs) if self._is_early() else None
            alike = SAMPLED if self.backwards else ALIKE
            known = self.repeated.answer(kind, module, alike) if kind is not None else None
            if known is not None:
                return known[0]
            if is_evaluation:
                self.evaluations.begin()
            self.depth += 1
            host_s = self.recorder.host_s
            try:
                result = original(module, *args, **kwargs)
                if kind is not None:
                    self.repeated.record(kind, result)
                return result
            finally:
                self.depth -= 1
                if is_evaluation:
                    self.evaluations.end()
                if not self.depth:
                    self.work.in_modules_s += self.recorder.host_s - host_s
                self.called_between |= self.ended
                if self.depth == 0 and not self.backwards and not self.optimizers:
                    self._after_call(module)

        torch.nn.Module.__call__ = call

    def _is_early(self) -> bool:
        """Return whether a call is outside training, and in no step that is kept, which is the third."""
        if self.evaluating or not self.backwards:
            return not (self.evaluating or self.depth)
        # A sampler may be a module that calls the model.
        return not torch.is_grad_enabled() and self.depth <= 1 and max(self.counts.values(), default=2) < 2

    def _after_call(self, module: Any) -> None:
        """Count the outermost call of a module with parameters as one step of inference."""
        if next(module.parameters(), None) is None or not self.recorder.window.ops:
            return
        self.calls += 1
        if not torch.is_grad_enabled():
            window = self.recorder.cut()
            if self.calls == 1 or len(window.ops) > 1:
                self.called = window
            self.session.check_time()

    def _watch_loaders(self) -> None:
        from torch.utils.data import DataLoader

        original_init, original_iter = DataLoader.__init__, DataLoader.__iter__

        @functools.wraps(original_init)  # Lightning reads its signature to make loaders again
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            kept = {name: value for name, value in kwargs.items() if name not in WORKER_SETTINGS}
            # The sixth argument is num_workers, and those after the seventh concern the workers too.
            original_init(loader, *args[:5], *(0 for _ in args[5:6]), *args[6:7], **kept)
            loader.without_worker = bool(kwargs.get("num_workers", args[5] if len(args) > 5 else 0))

        DataLoader.__init__ = init
        DataLoader.__iter__ = lambda loader: LimitedIterator(self, loader, original_iter(set_up_worker(loader)))

    def before_batch(self, loader: Any, batches: "LimitedIterator") -> None:
        """Decide whether an iterator may give another batch."""
        self.session.check_time()
        if not self.evaluating:
            return
        if batches.training:
            if self._expects_evaluation():
                return
            if not self.ended:
                batches.measure_more()
                self.recorder.cut()
                self.recorder.stage = "evaluation"
                self.work.end_epoch(self._loaded_s(EVALUATION))
            self.ended = True
            raise NoMoreBatches
        if id(loader) in self.training_loaders:
            self._begin_epoch()
            raise StopTrace
        if self.evaluated:
            # The evaluation batch that moves most stands for all: the last one of a data set is seldom full.
            window = self.recorder.cut()
            if self.evaluation is None or moved_bytes(window) > moved_bytes(self.evaluation):
                self.evaluation = window
        if batches.evaluated >= EVALUATION_BATCHES:
            raise NoMoreBatches
        if not self.evaluated:
            self.recorder.cut()
            self.recorder.stage = "evaluation"
            with contextlib.suppress(TypeError):  # a stream has no length
                self.evaluation_batches = len(loader)
        self.evaluated += 1
        batches.evaluated += 1

    def _begin_epoch(self) -> None:
        """Note what lies between two epochs; without another loader, its calls of modules are the evaluation."""
        self.work.begin_epoch(self._loaded_s(EVALUATION))
        if self.called_between and not (self.evaluated or self.late):
            self.evaluation, self.evaluation_batches = self.recorder.cut(), 1

    def _loaded_s(self, use: str) -> float:
        return sum(load.times.needed_s for load in self.loads[use])

    def _expects_evaluation(self) -> bool:
        """Return whether training goes on, because its loop evaluates every so many steps."""
        if self.ended or self.evaluated or self.batches.is_planning:
            return False
        steps = max(self.counts.values(), default=self.backwards)
        return steps < MOST_STEPS and loop_hooks.expects_evaluation()

    def start_evaluation(self) -> None:
        """End the training loaders, so that the script goes on to evaluation."""
        self.evaluating = True
        self.session.limit_s = min(self.session.limit_s, self.session.used_s + EVALUATION_S)
        if not self.training_loaders:
            raise StopTrace
        trainers.validate_after_step(sys._getframe())

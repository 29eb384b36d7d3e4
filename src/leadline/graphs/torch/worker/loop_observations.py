"""Observations of the hooks on a training loop: loaders, batches and the code around each step."""

import collections
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from leadline.graphs.torch.worker.later_loops import later_training
from leadline.graphs.torch.worker.libraries import TRAINERS, FrameKey, package_of
from leadline.graphs.torch.worker.loop_periods import period_around
from leadline.graphs.torch.worker.loop_roles import same_loop, split_loops
from leadline.graphs.torch.worker.loops import EnclosingLoop, enclosing_loops


class WatchedStep(NamedTuple):
    """One update of the weights, and the code around it."""

    loops: List[EnclosingLoop]
    loader: Any
    backward: int
    batches: int = 0
    """Training batches that were drawn before it."""
    optimizer: int = 0
    """Identity of the optimizer."""


class LoopObservations:
    """Everything the hooks observed so far. There is one for the process."""

    def __init__(self, script: Optional[str]) -> None:
        self.script = script
        self.loaders: List[Any] = []
        self.loader_settings: Dict[int, Dict[str, Any]] = {}
        self.first_batch: Dict[int, Any] = {}
        self.current: Any = None
        self.inferring: Any = None
        """Loader that was read without gradients before any training."""
        self.evaluated: List[int] = []
        self.steps_to_evaluation: Optional[int] = None
        """Steps before the first evaluation, if the loop over the training batches evaluates."""
        self.evaluation_calls = 0
        """Calls of the model in an evaluation without a loader."""
        self.evaluation_period = 0
        """Passes of that loop between evaluations, as its condition says; zero without one."""
        self.later = ""
        """Place of further training after the loops of the steps."""
        self.made_in: Set[Tuple[int, str]] = set()
        """Lines and texts of the loops in which an optimizer was made before the first step."""
        self.replaced = ""
        """Place in these loops where a condition replaces the loader."""
        self.options: Dict[str, Any] = {}
        self.all_steps: List[WatchedStep] = []
        self.endless: Set[int] = set()
        """Loaders that a generator of the script reads again and again."""
        self.step_count = 0
        self.updates: List[WatchedStep] = []
        self.backward_count = 0
        self.drawn: "collections.Counter[int]" = collections.Counter()
        """Training batches of each loader."""
        self.backward_lines: "collections.Counter[str]" = collections.Counter()
        self.trained_at: Dict[FrameKey, int] = {}
        """Frames of libraries around the last backward pass, and their lines."""
        self.autocast: Optional[str] = None
        self.optimizers: List[Any] = []
        self.steps_frozen = False
        """An optimizer made a step with weights that need no gradient."""
        self.batches_at: Dict[int, List[int]] = {}
        """Training batches that were drawn before each step of each optimizer."""
        self.root: Any = None
        """The outermost module that runs now, and whether its batch is read."""
        self.root_is_read = False
        self.forward: Optional[Dict[str, Any]] = None
        self.framework: Dict[str, Any] = {}
        self.around: List[EnclosingLoop] = []
        """Loops of the script that call the framework's own loop again and again."""
        self.hooks: List[Any] = []
        self.loader_names: Dict[int, str] = {}

    def read_calls(self, frame: Any) -> None:
        """Read the loops around the outermost call of a framework on the stack of a step, and calls that follow it."""
        caller = None
        while frame is not None and frame.f_code.co_name != "<module>":
            if package_of(frame) in TRAINERS:
                caller = frame.f_back
            frame = frame.f_back
        if caller is not None:
            self.around = enclosing_loops(self.folder, caller)
            self.later = later_training(self.folder, within=caller)

    @property
    def batch_count(self) -> int:
        """The training batches so far. Those that several loaders give at the same time are one."""
        return max(self.drawn.values(), default=0)

    @property
    def folder(self) -> str:
        """The folder that holds the user's own files."""
        return os.path.dirname(os.path.abspath(self.script or sys.argv[0]))

    @property
    def steps(self) -> List[WatchedStep]:
        """The first steps of the optimizer that steps most rarely."""
        rarest = min(self.batches_at, key=lambda optimizer: len(self.batches_at[optimizer]), default=0)
        return [step for step in self.all_steps if step.optimizer == rarest] or self.all_steps

    def typical_step(self) -> Optional[WatchedStep]:
        """Return the last step that was read, or the last backward pass without an optimizer object."""
        with_loader = [step for step in self.steps if step.loader is not None]
        return next(reversed(with_loader or self.steps or self.updates), None)

    def advances(self, step: WatchedStep) -> bool:
        """Return whether the innermost loop goes on with each step, so that no loop of a library is within it."""
        others = self.steps or self.updates
        places = [
            other.loops[-1].position for other in others if other.loops and same_loop(other.loops[-1:], step.loops[-1:])
        ]
        return len(places) < 2 or None in places or len(set(places)) > 1

    def read_evaluation(self, loader: Any) -> None:
        """Read at the first evaluation batch of a loader whether the loop over the training batches evaluates."""
        step = self.typical_step()
        batches = split_loops(step.loops, step.loader, self.advances(step))[1] if step is not None else None
        if batches is None or self.framework.get("framework"):
            return
        if any(same_loop([loop], [batches]) for loop in enclosing_loops(self.folder)):
            self.evaluation_period = period_around(self.folder)
            self.steps_to_evaluation = self.evaluation_period or self.step_count
        elif self.evaluates_between_steps([loader]):
            self.steps_to_evaluation = self.step_count

    def evaluates_between_steps(self, loaders: List[Any]) -> bool:
        """Return whether the loop over the training batches names one of these loaders, which was not read yet."""
        step = self.typical_step()
        is_own = not self.framework.get("framework")
        loop = split_loops(step.loops, step.loader, self.advances(step))[1] if step and is_own else None
        unread = [loader for loader in loaders if id(loader) not in self.first_batch]
        return loop is not None and any(self.loader_names.get(id(loader)) in loop.names for loader in unread)

    def unsure_of(self, loops: List[EnclosingLoop]) -> Iterator[str]:
        """Yield what is assumed or unknown of a run with these loops around its steps, which were not counted."""
        for loop in loops:
            if (loop.line, loop.text) in self.made_in and loop.times != 1:
                yield f"all trainings of the loop over {loop.place} are assumed to be as long as the first"
        if self.later:
            yield f"the script trains again in {self.later}: only the first loop is counted, the rest is unknown"
        if self.replaced:
            yield f"the loader that {self.replaced} makes later is assumed to give as many batches as the first"

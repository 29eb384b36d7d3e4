"""Observations of the hooks on a training loop: loaders, batches and the code around each step."""

import collections
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Set

from leadline.graphs.torch.worker.loop_roles import same_loop, split_loops
from leadline.graphs.torch.worker.loops import EnclosingLoop


class WatchedStep(NamedTuple):
    """One update of the weights, and the code around it."""

    loops: List[EnclosingLoop]
    loader: Any
    backward: int
    batches: int = 0
    """Training batches that were drawn before it."""
    optimizer: int = 0


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
        self.later = ""
        """Place of further training after the loops of the steps."""
        self.options: Dict[str, Any] = {}
        self.steps: List[WatchedStep] = []
        self.endless: Set[int] = set()
        """Loaders that a generator of the script reads again and again."""
        self.step_count = 0
        self.updates: List[WatchedStep] = []
        self.backward_count = self.batch_count = 0
        self.backward_lines: "collections.Counter[str]" = collections.Counter()
        self.autocast: Optional[str] = None
        self.optimizers: List[Any] = []
        self.batches_at: Dict[int, List[int]] = {}
        """Training batches that were drawn before each step of each optimizer."""
        self.root: Any = None
        self.forward: Optional[Dict[str, Any]] = None
        self.framework: Dict[str, Any] = {}
        self.hooks: List[Any] = []
        self.loader_names: Dict[int, str] = {}

    @property
    def folder(self) -> str:
        """The folder that holds the user's own files."""
        return os.path.dirname(os.path.abspath(self.script or sys.argv[0]))

    def typical_step(self) -> Optional[WatchedStep]:
        """Return the last step of the rarest optimizer, or the last backward pass without an optimizer object."""
        rarest = min(self.batches_at, key=lambda key: len(self.batches_at[key]), default=0)
        steps = [step for step in self.steps if step.optimizer == rarest] or self.steps
        with_loader = [step for step in steps if step.loader is not None]
        return next(reversed(with_loader or steps or self.updates), None)

    def advances(self, step: WatchedStep) -> bool:
        """Return whether the innermost loop goes on with each step, so that no loop of a library is within it."""
        steps = [other for other in self.steps or self.updates if other.optimizer == step.optimizer]
        places = [other.loops[-1].position for other in steps if same_loop(other.loops[-1:], step.loops[-1:])]
        return len(places) < 2 or None in places or len(set(places)) > 1

    def evaluates_between_steps(self, loaders: List[Any]) -> bool:
        """Return whether the loop over the training batches names one of these loaders, which was not read yet."""
        step = self.typical_step()
        is_own = not self.framework.get("framework")
        loop = split_loops(step.loops, step.loader, self.advances(step))[1] if step and is_own else None
        unread = [loader for loader in loaders if id(loader) not in self.first_batch]
        return loop is not None and any(self.loader_names.get(id(loader)) in loop.names for loader in unread)

"""What was seen of a training script's loop so far."""

import collections
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from leadline.graphs.torch.worker.loops import Loop


class Step(NamedTuple):
    """What surrounded one update of the weights."""

    loops: List[Loop]
    where: Optional[str]
    loader: Any
    optimizer: Any
    backward: int


class Watch:
    """Everything seen so far; one for the process."""

    def __init__(self, script: Optional[str]) -> None:
        self.script = script
        self.workers: Dict[int, int] = {}
        self.prefetch: Dict[int, Optional[int]] = {}
        self.pinned: Dict[int, bool] = {}
        self.loaders: List[Any] = []
        self.drawn: "collections.Counter[int]" = collections.Counter()
        self.first_batch: Dict[int, Any] = {}
        self.current: Any = None
        self.evaluated: List[int] = []
        self.options: Dict[str, Any] = {}
        self.steps: List[Step] = []
        self.step_count = 0
        self.updates: List[Step] = []
        self.backward_count = 0
        self.backward_lines: "collections.Counter[str]" = collections.Counter()
        self.autocast: Optional[str] = None
        self.optimizers: List[Any] = []
        self.root: Any = None
        self.forward: Optional[Dict[str, Any]] = None
        self.framework: Dict[str, Any] = {}
        self.hooks: List[Any] = []
        self.loader_names: Dict[int, str] = {}

    @property
    def folder(self) -> str:
        """The folder that holds the user's own files."""
        return os.path.dirname(os.path.abspath(self.script or sys.argv[0]))

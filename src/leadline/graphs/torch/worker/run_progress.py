"""How far a run has come through its loops, read from time to time while a fork counts the steps."""

import ast
from typing import Any, Iterator, List, Optional, Tuple

from leadline.graphs.torch.worker.libraries import user_frames
from leadline.graphs.torch.worker.limited_loaders import batches_before
from leadline.graphs.torch.worker.loop_bounds import counted_passes, passes_before, while_bound
from leadline.graphs.torch.worker.loop_lengths import iterations
from leadline.graphs.torch.worker.loops import loops_of
from leadline.graphs.torch.worker.projection import Position

GROWTH = 1.25
"""Ratio of the steps at which the loops are read. Reading takes as long as some steps."""
LEAST = 16
"""Steps from which it is read: earlier ones may warm up."""


class RunProgress:
    """Places of a run at growing numbers of steps."""

    def __init__(self) -> None:
        self._places = [Position()]
        self._next = LEAST

    def is_due(self, steps: int) -> bool:
        """Return whether the loops are to be read at this step."""
        return steps >= self._next

    def add(self, steps: int, script_folder: str) -> None:
        """Add the place at a step, which runs now."""
        self._next = max(steps + 1, int(steps * GROWTH))
        done, unit = 0.0, 1.0
        for before, passes in _passes(script_folder):
            if before is None or not passes or not 0 <= before < passes:
                break
            done += unit * before / passes
            unit /= passes
        self._places.append(Position(steps, done, done + unit))

    def ends(self) -> List[Position]:
        """Return the last place, and before it that at half its steps."""
        last = self._places[-1]
        return [
            next(place for place in reversed(self._places) if place.steps <= last.steps / 2 or not place.steps),
            last,
        ]


def _passes(script_folder: str) -> Iterator[Tuple[Optional[int], Optional[int]]]:
    """Yield the passes that the loops around the current call have made, and all of each, outermost loop first."""
    for frame in reversed(list(user_frames(script_folder))):
        for loop in loops_of(frame):
            yield _passes_of(loop, frame)


def _passes_of(loop: Any, frame: Any) -> Tuple[Optional[int], Optional[int]]:
    if isinstance(loop, ast.For):
        iterable, passes = iterations(loop, frame)
        before = passes_before(loop, frame)
        return batches_before(iterable) if before is None else before, passes
    passes, _, counter = while_bound(loop, frame) or (None, False, "")
    return counted_passes(loop, counter, frame).before, passes

"""How far a run has come through its loops, read from time to time while a fork counts the steps."""

import ast
from typing import Any, Iterator, List, Optional, Tuple

from leadline.graphs.torch.worker.libraries import frame_key, library_frames, user_frames
from leadline.graphs.torch.worker.limited_loaders import batches_before
from leadline.graphs.torch.worker.loop_bounds import counted_passes, passes_before, while_bound
from leadline.graphs.torch.worker.loop_lengths import iterations
from leadline.graphs.torch.worker.loops import loops_of
from leadline.graphs.torch.worker.projection import Position, Projection, project

GROWTH = 1.25
"""Ratio of the steps at which the loops are read. Reading takes as long as some steps."""
LEAST = 16
"""Steps from which it is read: earlier ones may warm up, unless they are slow."""
SLOW_S = 4.0
"""Processor seconds after which fewer steps are slow."""
SELDOM_S = 0.5
"""Processor seconds after which it is read in any case."""


class RunProgress:
    """Positions of a run at growing numbers of steps."""

    def __init__(self) -> None:
        self.projection: Optional[Projection] = None
        """Steps of the whole run, as far as the positions tell."""
        self.rounds = 0.0
        """Passes of the outermost loop that are done, with the share of the one that runs."""
        self._positions = [Position()]
        self._next, self._next_s = LEAST, 0.0
        self._first: List[Optional[int]] = []
        """Passes of each loop before that of the first position."""

    def is_due(self, steps: int, used_s: float) -> bool:
        """Return whether the loops are to be read at this step."""
        return steps >= self._next or (used_s >= self._next_s and (steps >= LEAST or used_s >= SLOW_S))

    def add(self, steps: int, used_s: float, script_folder: str) -> None:
        """Add the position of a step, which runs now.

        Within the first pass with steps, if it is not the first of all, nothing tells that each one has steps.
        """
        self._next, self._next_s = max(steps + 1, int(steps * GROWTH)), used_s + SELDOM_S
        done, unit, passes = 0.0, 1.0, list(_passes(script_folder))
        self._first = self._first or [before for before, _ in passes]
        for (before, times), first in zip(passes, self._first):  # noqa: B905 - Python 3.9 has no strict
            if before is None or not times or not 0 <= before < times:
                break
            done += unit * before / times
            unit /= times
            if before and before == first:
                break
        self.rounds = done * (passes[0][1] or 0) if passes else 0.0
        self._positions.append(Position(steps, done, done + unit))
        self.projection = project(self._positions)


def _passes(script_folder: str) -> Iterator[Tuple[Optional[int], Optional[int]]]:
    """Yield the passes that the loops around the current call have made, and all of each, outermost loop first.

    A library's loop without a known end that calls the script, as that of a command line, is left out.
    """
    libraries = library_frames(script_folder)
    is_around = True
    for frame in reversed(list(user_frames(script_folder, None, libraries))):
        is_around &= frame_key(frame) in libraries
        for loop in loops_of(frame):
            before, passes = _passes_of(loop, frame)
            if passes is not None or not is_around:
                yield before, passes


def _passes_of(loop: Any, frame: Any) -> Tuple[Optional[int], Optional[int]]:
    if isinstance(loop, ast.For):
        iterable, passes = iterations(loop, frame)
        before = passes_before(loop, frame)
        return batches_before(iterable) if before is None else before, passes
    passes, _, counter = while_bound(loop, frame) or (None, False, "")
    return counted_passes(loop, counter, frame).before, passes

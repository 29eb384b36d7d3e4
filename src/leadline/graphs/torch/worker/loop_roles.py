"""The roles of the loops around a training step: over epochs, over batches, or over steps that draw a batch each."""

import inspect
import re
from typing import Any, Iterator, List, Optional, Tuple

import torch

from leadline.graphs.torch.worker.expressions import never_ends
from leadline.graphs.torch.worker.loops import EnclosingLoop, loops_of

LENGTH = re.compile(r"\w*per_?epoch\w*|epoch_(?:size|steps|len)\w*")
"""Names of the length of an epoch."""


def split_loops(
    loops: List[EnclosingLoop], loader: Any, advances: bool
) -> Tuple[List[EnclosingLoop], Optional[EnclosingLoop], Optional[EnclosingLoop]]:
    """Split the loops around a step into those over epochs, the one over batches, and one that limits the steps.

    ``advances``: The innermost loop goes on with each step.
    """
    for loop in loops:
        if loop.counts_inner and loop.times is not None:
            return [], None, loop
    if loader is not None:
        others = [i for i, loop in enumerate(loops) if loop.is_for and not _is_over_parts(loop)]
        places = [i for i, loop in enumerate(loops) if loop.iterable is loader] or others
        draws = loops and not loops[-1].is_for and "next" in loops[-1].names
        if places and not (draws and places[-1] < len(loops) - 1 and loops[places[-1]].iterable is not loader):
            return loops[: places[-1]], loops[places[-1]], None
        if loops and advances:
            return loops[:-1], loops[-1]._replace(is_drawing=True), None
        return loops, None, None
    if loops and _is_over_epochs(loops[-1]):
        return loops, None, None
    return loops[:-1], loops[-1] if loops else None, None


def _is_over_parts(loop: EnclosingLoop) -> bool:
    """Return whether a loop is over numbers, or over names, data sets or modules, which are no batches."""
    parts = loop.iterable if isinstance(loop.iterable, (list, tuple)) else []
    kinds = (str, int, float, torch.utils.data.Dataset, torch.nn.Module)
    return isinstance(loop.iterable, range) or (bool(parts) and isinstance(parts[0], kinds))


def same_loop(loops: List[EnclosingLoop], others: List[EnclosingLoop]) -> bool:
    """Return whether these are the same lines of the source."""
    return [(loop.line, loop.text) for loop in loops] == [(loop.line, loop.text) for loop in others]


def is_over_phases(loop: EnclosingLoop) -> bool:
    """Return whether a loop goes through names such as ``["train", "val"]``, of which only training updates weights."""
    names = loop.iterable if isinstance(loop.iterable, (list, tuple)) else []
    return all(isinstance(name, str) for name in names) and any("train" in name.lower() for name in names)


def reads_endlessly(frame: Any) -> bool:
    """Return whether a frame is a generator that reads within ``while True``, which nothing ends."""
    if frame is None or not frame.f_code.co_flags & inspect.CO_GENERATOR:
        return False
    return any(map(never_ends, loops_of(frame)))


def loop_notes(loops: List[EnclosingLoop]) -> Iterator[str]:
    """Yield the assumptions on the lengths of loops."""
    for loop in loops:
        if loop.varies_with:
            yield f"the loop over `{loop.text}` is assumed to be as long in each pass of `{loop.varies_with}`"
        if loop.increment:
            yield f"the loop over `{loop.text}` is assumed to go on by the same `{loop.increment}` in each pass"
        if loop.may_end:
            yield f"the loop over {loop.place} may end early, by {loop.may_end}"
        if loop.may_skip:
            yield f"each pass of `{loop.text}` is assumed to train, which depends on {loop.may_skip}"


def _is_over_epochs(loop: EnclosingLoop) -> bool:
    return "epoch" in LENGTH.sub("", f"{loop.name} {loop.text}".lower())

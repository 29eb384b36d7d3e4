"""Batches of different sizes: find out that they are, and train on a mean one and on the largest."""

import copy
import time
from collections.abc import MutableMapping
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

LOOK_S = 5.0
LOOK_BATCHES = 256
LOOK_BYTES = 512 << 20
"""How long, at how many batches, and at what bytes of them a loader is looked at: the batches are kept meanwhile."""
STEPS, MEAN = 4, 1
"""Steps after the look, and which of them is of mean batches alone.

Two steps' worth of mean batches come before the largest: a loop that fetches a batch ahead still trains on an older one
first, and on a mean one beside the first of the largest.
"""


class BatchPlanner:
    """What training loaders give, and what one is made to give once its batches were seen to differ."""

    def __init__(self) -> None:
        self._shapes: Dict[int, List[Tuple[Any, ...]]] = {}
        self._sizes: Dict[int, List[int]] = {}
        self._fullest: Dict[int, Tuple[int, Any]] = {}
        self._loader: Optional[int] = None
        self._wanted = 0
        self._plan: List[Any] = []
        self._windows: List[Any] = []
        self.sentence = ""

    def saw(self, loader: Any, batch: Any) -> None:
        """Take note of a batch that a script trains on."""
        key, size = id(loader), _bytes(batch)
        shapes = self._shapes.setdefault(key, [])
        if self.asked or len(shapes) >= LOOK_BATCHES:
            return
        shapes.append(_signature(batch))
        self._sizes.setdefault(key, []).append(size)
        if key not in self._fullest or size > self._fullest[key][0]:
            self._fullest[key] = size, _apart(batch)

    @property
    def differ(self) -> bool:
        """Whether batches of a loader differ in more than the number of their samples, as the last of an epoch does."""
        return any(len(set(shapes)) > 1 for shapes in self._shapes.values())

    @property
    def asked(self) -> bool:
        """Whether certain batches are wanted."""
        return self._loader is not None

    def ask(self, steps: int) -> None:
        """Look ahead at the next draw: what was seen so far was within so many steps."""
        self._loader = max(self._shapes, key=lambda loader: len(set(self._shapes[loader])))
        self._wanted = max(1, len(self._shapes[self._loader]) // max(steps, 1))

    def wants(self, loader: Any) -> bool:
        """Tell whether the loader is made to give certain batches."""
        return self._loader == id(loader)

    def next(self, draws: Any) -> Optional[Any]:
        """Return a copy of the batch that is wanted next, the last one over and over; ``None`` at an epoch's end."""
        if not self._plan:
            self._look(draws)
        if not self._plan:
            return None
        return copy.deepcopy(self._plan.pop(0) if len(self._plan) > 1 else self._plan[0])

    def done(self, window: Any) -> bool:
        """Take one more step; tell whether enough of them were made."""
        self._windows.append(window)
        return len(self._windows) >= STEPS

    def chosen(self) -> Optional[Tuple[Any, Any]]:
        """Return the steps of mean batches and of the largest, told by what they move; ``None`` without them."""
        if not self._plan:
            return None
        return self._windows[MEAN], max(self._windows, key=moved_bytes)

    def _look(self, draws: Any) -> None:
        """Draw batches as long as it is allowed, and plan mean ones for two steps, then the largest over and over."""
        key = self._loader or 0
        seen: List[Tuple[int, Any]] = []
        began, whole = time.monotonic(), False
        while len(seen) < LOOK_BATCHES and time.monotonic() - began < LOOK_S and _total(seen) < LOOK_BYTES:
            try:
                batch = next(draws)
            except StopIteration:
                whole = True
                break
            seen.append((_bytes(batch), _apart(batch)))
        if not seen:
            return
        sizes = [*self._sizes[key], *(size for size, _ in seen)]
        mean = sum(sizes) / len(sizes)
        near = min(seen, key=lambda one: abs(one[0] - mean))[1]
        most = max((*seen, self._fullest[key]), key=lambda one: one[0])[1]
        self._plan = [near] * (2 * self._wanted) + [most]
        looked_at = "all" if whole else "the first"
        self.sentence = (
            f"batches differ in size: the time is that of a mean one ({_said(near)}), the memory that of the largest "
            f"of {looked_at} {len(sizes)} ({_said(most)})"
        )


def moved_bytes(window: Any) -> int:
    """Return what the ops of a window read and write."""
    return sum(spec[3] for raw in window.ops for spec in (*raw.inputs, *raw.outputs))


def _tensors(batch: Any) -> List[torch.Tensor]:
    leaves = tree_leaves(dict(batch) if hasattr(batch, "keys") else batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _apart(batch: Any) -> Any:
    """Return a copy of a batch that is no part of what the script holds, in a container of its own.

    A script may take things out of the one that it was given.
    """
    with _disable_current_modes():
        if not hasattr(batch, "keys"):
            return tree_map(_copied, batch)
        kept = copy.copy(batch)
        if isinstance(getattr(kept, "data", None), dict):  # as tokenizers give them
            kept.data = dict(kept.data)
        if isinstance(kept, MutableMapping):
            for name in kept:
                kept[name] = tree_map(_copied, kept[name])
        return kept


def _copied(leaf: Any) -> Any:
    return leaf.clone() if type(leaf) is torch.Tensor else leaf


def _signature(batch: Any) -> Tuple[Any, ...]:
    """Return the shapes of a batch but for the number of its samples."""
    return tuple(tuple(one.shape[1:]) for one in _tensors(batch))


def _bytes(batch: Any) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors(batch))


def _total(seen: List[Tuple[int, Any]]) -> int:
    return sum(size for size, _ in seen)


def _said(batch: Any) -> str:
    """Write the shape of the largest tensor of a batch."""
    largest = max(_tensors(batch), key=lambda one: one.numel())
    return " × ".join(str(size) for size in largest.shape)

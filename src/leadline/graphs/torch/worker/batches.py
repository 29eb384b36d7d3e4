"""Plan batches of different sizes: train on mean ones, then on the largest."""

import copy
from collections.abc import MutableMapping
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from leadline.graphs.torch.worker.session import read_times

PREVIEW_S, PREVIEW_BATCHES, PREVIEW_BYTES = 5.0, 256, 512 << 20
"""Limits of the batches that are drawn ahead and kept, in time, number and bytes."""
STEPS, MEAN = 4, 1
"""Steps after the preview, and the one that has mean batches alone.

Two steps of mean batches come before the largest. A loop that fetches a batch ahead still trains on an older one first,
and then on a mean one together with the first of the largest.
"""


def set_up_worker(loader: Any) -> Any:
    """Do once what each worker of a loader would do first, as the only worker, and return the loader."""
    worker = torch.utils.data._utils.worker
    if loader.__dict__.pop("without_worker", False) and loader.worker_init_fn is not None:
        seed = torch.initial_seed()
        worker._worker_info = worker.WorkerInfo(id=0, num_workers=1, seed=seed, dataset=loader.dataset)
        try:
            loader.worker_init_fn(0)
        finally:
            worker._worker_info = None
    return loader


class BatchPlanner:
    """Records the batches of training loaders, and plans those of one loader if their sizes differ."""

    def __init__(self) -> None:
        self._shapes: Dict[int, List[Tuple[Any, ...]]] = {}
        self._sizes: Dict[int, List[int]] = {}
        self._fullest: Dict[int, Tuple[int, Any]] = {}
        self._loader: Optional[int] = None
        self._batches_per_step = 0
        self._plan: List[Any] = []
        self._windows: List[Any] = []
        self.sentence = ""

    def record(self, loader: Any, batch: Any) -> None:
        """Record a batch that the script trains on."""
        key, size = id(loader), _bytes(batch)
        shapes = self._shapes.setdefault(key, [])
        if self.is_planning or len(shapes) >= PREVIEW_BATCHES:
            return
        # Without the number of samples.
        shapes.append(tuple(tuple(tensor.shape[1:]) for tensor in batch_tensors(batch)))
        self._sizes.setdefault(key, []).append(size)
        if key not in self._fullest or size > self._fullest[key][0]:
            self._fullest[key] = size, _independent_copy(batch)

    @property
    def sizes_differ(self) -> bool:
        """Return whether batches of a loader differ in more than the number of samples."""
        return any(len(set(shapes)) > 1 for shapes in self._shapes.values())

    @property
    def is_partial(self) -> bool:
        """Return whether the last batch of a loader, or the one before it, has fewer samples than others.

        That is so at the end of an epoch. A step may be on the one before, as Accelerate fetches a batch ahead.
        """
        return not self.sizes_differ and any(min(sizes[-2:]) < max(sizes) for sizes in self._sizes.values())

    @property
    def is_planning(self) -> bool:
        """Return whether the next batches are planned."""
        return self._loader is not None

    def plan_after(self, steps: int) -> None:
        """Plan the next draws. The batches recorded so far made up this many steps."""
        self._loader = max(self._shapes, key=lambda loader: len(set(self._shapes[loader])))
        self._batches_per_step = max(1, len(self._shapes[self._loader]) // max(steps, 1))

    def plans_for(self, loader: Any) -> bool:
        """Return whether the batches of a loader are planned."""
        return self._loader == id(loader)

    def next(self, draws: Any) -> Optional[Any]:
        """Return a copy of the next planned batch, the last one repeatedly, or ``None`` at the end of an epoch."""
        if not self._plan:
            self._draw_plan(draws)
        if not self._plan:
            return None
        return copy.deepcopy(self._plan.pop(0) if len(self._plan) > 1 else self._plan[0])

    def done(self, window: Any) -> bool:
        """Record one more step. True once there are enough."""
        self._windows.append(window)
        return len(self._windows) >= STEPS

    def chosen(self) -> Optional[Tuple[Any, Any]]:
        """Return the steps of mean batches and of the largest, by the bytes they move; ``None`` without a plan."""
        if not self._plan:
            return None
        return self._windows[MEAN], max(self._windows, key=moved_bytes)

    def _draw_plan(self, draws: Any) -> None:
        """Draw batches within the limits. Plan mean ones for two steps, then the largest repeatedly."""
        key = self._loader or 0
        batches: List[Tuple[int, Any]] = []
        began, is_whole_epoch = read_times(), False
        used_s = drawn_bytes = 0.0
        while len(batches) < PREVIEW_BATCHES and used_s < PREVIEW_S and drawn_bytes < PREVIEW_BYTES:
            try:
                batch = next(draws)
            except StopIteration:
                is_whole_epoch = True
                break
            batches.append((_bytes(batch), _independent_copy(batch)))
            drawn_bytes += batches[-1][0]
            used_s = read_times().since(began).needed_s
        if not batches:
            return
        sizes = [*self._sizes[key], *(size for size, _ in batches)]
        mean = sum(sizes) / len(sizes)
        mean_batch = min(batches, key=lambda sized: abs(sized[0] - mean))[1]
        largest_batch = max((*batches, self._fullest[key]), key=lambda sized: sized[0])[1]
        self._plan = [mean_batch] * (2 * self._batches_per_step) + [largest_batch]
        looked_at = "all" if is_whole_epoch else "the first"
        self.sentence = (
            f"batches differ in size: the time is that of a mean one ({_shape_text(mean_batch)}), "
            f"the memory that of the largest of {looked_at} {len(sizes)} ({_shape_text(largest_batch)})"
        )


def moved_bytes(window: Any) -> int:
    """Return the bytes that the ops of a window read and write."""
    return sum(spec[3] for op in window.ops for spec in (*op.inputs, *op.outputs))


def batch_tensors(batch: Any) -> List[torch.Tensor]:
    """Return the tensors of a batch, however nested."""
    leaves = tree_leaves(dict(batch) if _is_mapping(batch) else batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_mapping(batch: Any) -> bool:
    return callable(getattr(batch, "keys", None))


def _independent_copy(batch: Any) -> Any:
    """Return a copy of a batch that shares nothing with the script, which may remove entries from its container."""
    with _disable_current_modes():
        if not _is_mapping(batch):
            return tree_map(_clone, batch)
        copied = copy.copy(batch)
        if isinstance(getattr(copied, "data", None), dict):  # as tokenizers give them
            copied.data = dict(copied.data)
        if isinstance(copied, MutableMapping):
            for name in copied:
                copied[name] = tree_map(_clone, copied[name])
        return copied


def _clone(leaf: Any) -> Any:
    return leaf.clone() if type(leaf) is torch.Tensor else leaf


def _bytes(batch: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in batch_tensors(batch))


def _shape_text(batch: Any) -> str:
    """Return the shape of the largest tensor of a batch as text."""
    largest = max(batch_tensors(batch), key=lambda tensor: tensor.numel())
    return " × ".join(str(size) for size in largest.shape)

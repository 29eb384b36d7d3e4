"""Iterators of data loaders that end after the traced steps, so that the script goes on to evaluation."""

import contextlib
import weakref
from typing import Any, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from leadline.graphs.torch.worker.batches import batch_tensors
from leadline.graphs.torch.worker.load_times import MeasuredLoad
from leadline.graphs.torch.worker.session import read_times

TRAINING, EVALUATION, INFERENCE = "loading", "evaluation_loading", "inference_loading"
"""Uses of a batch; the first two as fields of ``LoopFacts``."""
MEASURED_LOADS, SPREAD_S, MEASURED_S = 8, 0.1, 0.5
"""Timed training batches besides the first, and the least and most seconds of those beyond the traced steps. Eight
short ones fit into one time slice, which begins with cold caches on a busy machine."""


_iterators: Any = weakref.WeakValueDictionary()
"""The last iterator of each loader, by its identity."""


def batches_before(loader: Any) -> Optional[int]:
    """Return the batches that a loader gave before the current one, ``None`` if no loader gave any."""
    return _iterators[id(loader)]._num_yielded - 1 if id(loader) in _iterators else None


class LimitedIterator:
    """The iterator of a data loader, for a watcher of steps that decides how many batches it gives."""

    def __init__(self, watcher: Any, loader: Any, iterator: Any) -> None:
        self.steps, self.loader, self.iterator = watcher, loader, iterator
        _iterators[id(loader)] = iterator
        self.training = not watcher.evaluating
        self.evaluated, self.is_on_host = 0, False

    def __iter__(self) -> "LimitedIterator":
        return self

    def __len__(self) -> int:
        return len(self.iterator)

    def __next__(self) -> Any:
        if self.steps.rest.is_fork:
            batch = next(self.iterator)
            self.steps.rest.count_evaluation()
            return batch
        self.steps.before_batch(self.loader, self)
        if self.training and torch.is_grad_enabled() and self.steps.batches.plans_for(self.loader):
            batch = self.steps.batches.next(self.iterator)
            if batch is None:  # the loader has none left: go on to evaluation
                self.steps.start_evaluation()
                self.steps.before_batch(self.loader, self)
            return batch
        batch, load = self._load()
        if self.training and torch.is_grad_enabled():  # false where a framework tries validation before training
            self.steps.training_loaders.add(id(self.loader))
            self.steps.loads[TRAINING].append(load)
            self.is_on_host = not any(isinstance(tensor, FakeTensor) for tensor in batch_tensors(batch))
            self.steps.batches.record(self.loader, batch)
        else:
            self.steps.loads[INFERENCE if self.training else EVALUATION].append(load)
            self.steps.rest.count_evaluation()
        return batch

    def _load(self) -> Tuple[Any, MeasuredLoad]:
        before, ops, in_modules_s = read_times(), self.steps.recorder.real_ops, self.steps.work.in_modules_s
        # Without a simulated device, the work of loading is on the same one as the step, but in no step.
        with _disable_current_modes() if self.steps.session.real else contextlib.nullcontext():
            batch = next(self.iterator)
        self.steps.work.in_modules_s = in_modules_s  # transforms are modules, too
        return batch, MeasuredLoad(read_times().since(before), self.steps.recorder.real_ops - ops)

    def measure_more(self) -> None:
        """Load further training batches only to time them, as far as their number and time are limited."""
        loads = self.steps.loads[TRAINING]
        used_s, is_watched = 0.0, not self.is_on_host
        while loads and used_s < (MEASURED_S if len(loads) <= MEASURED_LOADS else SPREAD_S):
            try:
                with contextlib.nullcontext() if is_watched else _disable_current_modes():
                    _, load = self._load()
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - the user's data set may raise anything
                if not is_watched:  # perhaps it computes on the GPU, which is there only under the recorder
                    is_watched = True
                    continue
                failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                self.steps.session.note(f"a batch after the traced steps cannot be loaded: {failure}")
                return
            loads.append(load._replace(is_watched=is_watched))
            used_s += load.times.needed_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterator, name)

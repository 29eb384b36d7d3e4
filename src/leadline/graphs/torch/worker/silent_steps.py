"""Let PyTorch calculate nothing any more in a fork that only counts the steps of a script."""

import copy
import functools
import queue
import sys
import time
from typing import Any, Dict, Iterator, List

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import dataloader as loader_module

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.batches import batch_tensors
from leadline.graphs.torch.worker.ops import argument_tensors
from leadline.graphs.torch.worker.session import call_after

KEPT = 8
"""Batches after which a loader gives the last one again, if they have the same shapes, or else one of them."""


def stop_calculating(rest: Any) -> None:
    """Let backward passes and optimizers do nothing, loaders repeat a batch and the recorder forget."""
    optimizer: Any = torch.optim.Optimizer
    recorder: Any = rest.recorder
    recorder._record = _forget_changed
    torch.autograd.Variable._execution_engine.run_backward = functools.partial(_pass_backward, rest)
    for kind in _subclasses(optimizer):
        _skip_step(kind)
    call_after(optimizer, "__init__", lambda _, made, *__, **___: _skip_step(type(made)))
    optimizer.zero_grad = torch.nn.Module.zero_grad = fake_tensors.do_nothing  # the gradients stay
    loader_module._SingleProcessDataLoaderIter._next_data = functools.partialmethod(_time_batch, rest, {})
    _give_gradients(torch.Tensor)
    _let_singular_matrices_pass()
    time.sleep = functools.partial(_count_sleep, rest)
    waiting: Any = queue.Queue
    waiting.put = _put


def _forget_changed(_: Any, traits: Any, args: Any, kwargs: Dict[str, Any], __: Any) -> None:
    """Forget the values of tensors that an operation changes."""
    for argument, tensor in argument_tensors(args, kwargs) if traits.mutated else ():
        if argument in traits.mutated and isinstance(tensor, FakeTensor):
            tensor.__dict__.pop("_known", None)


def _pass_backward(
    rest: Any, tensors: Any, gradients: Any, keep: bool, create: bool, inputs: Any, *_: Any, **options: Any
) -> Any:
    if not rest.recorder.optimizers:
        rest.count(0)
    return None if options.get("accumulate_grad") else tuple(map(torch.zeros_like, inputs))


def _give_gradients(kind: Any) -> None:
    """Let inputs have a gradient, which a script may read after a backward pass."""
    kept = next(vars(base)["grad"] for base in kind.__mro__[1:] if "grad" in vars(base))

    def read(tensor: Any) -> Any:
        gradient = kept.__get__(tensor)
        is_input = tensor.requires_grad and tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)
        if gradient is None and is_input:
            gradient = torch.zeros_like(tensor)
            kept.__set__(tensor, gradient)
        return gradient

    kind.grad = property(read, kept.__set__, kept.__delete__)


def _subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _subclasses(each)


def _skip_step(kind: type) -> None:
    """Replace the step within the wrapper of PyTorch, which still calls hooks, and which others keep."""
    step: Any = vars(kind).get("step")
    if getattr(step, "hooked", None):
        cells = dict(zip(step.__code__.co_freevars, step.__closure__))  # noqa: B905 - Python 3.9 has no strict
        cells["func"].cell_contents = _step


def _step(_: Any, closure: Any = None, *__: Any, **___: Any) -> Any:
    with torch.enable_grad():
        return closure() if closure is not None else None


def _time_batch(iterator: Any, rest: Any, kept: Dict[Any, List[Any]]) -> Any:
    with rest.passing():
        return _next_batch(iterator, kept)


def _next_batch(iterator: Any, kept: Dict[Any, List[Any]]) -> Any:
    """Load a batch, or repeat one of a loader that gave enough of that many samples."""
    index, fetcher = iterator._next_index(), iterator._dataset_fetcher
    if iterator._dataset_kind != loader_module._DatasetKind.Map or not isinstance(index, list):
        return fetcher.fetch(index)
    last = kept.setdefault((id(fetcher.dataset), len(index)), [])
    shapes = [shapes for _, shapes in last]
    if len(last) == KEPT:
        is_alike = shapes.count(shapes[0]) == KEPT
        fake_tensors.GUESSED[0] |= not is_alike
        last.append(last.pop(0))
        return copy.copy(last[-1][0])
    batch = fetcher.fetch(index)
    found = [tuple(tensor.shape) for tensor in batch_tensors(batch)]
    last.append((copy.copy(batch), found or len(last)))
    return batch


def _let_singular_matrices_pass() -> None:
    """Let NumPy return no number where it would raise an error: guessed matrices are often singular."""
    for module in [sys.modules.get("numpy.linalg._linalg"), sys.modules.get("numpy.linalg.linalg")]:
        for name in [name for name in vars(module or object) if name.startswith("_raise_linalgerror")]:
            setattr(module, name, fake_tensors.do_nothing)


def _count_sleep(rest: Any, seconds: float) -> None:
    rest.slept_s += seconds


def _put(waiting: Any, item: Any, *_: Any, **__: Any) -> None:
    """Add to a queue without end: the threads that would take from it are not here."""
    waiting.queue.clear()
    waiting._put(item)

"""Calls of a model without gradients before the traced step: after a few alike, only their results are made."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.session import TraceSession

ALIKE, SAMPLED = 3, 16
"""Equal results of calls with equal shapes, after which further ones are assumed to be equal too; after the first
backward pass, they are those of a sampler."""
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class _Result(NamedTuple):
    """The shapes of a result, and how many calls in a row gave it."""

    shapes: Tuple[Any, ...]
    structure: Any
    calls: int


class RepeatedCalls:
    """Results of calls by their module and the shapes of their arguments.

    Scripts evaluate before the first step, precompute features of a whole data set, fill a replay buffer or sample
    from a diffusion model after the first step, which would take all the time of a trace. No estimate uses these calls.
    """

    def __init__(self, session: TraceSession) -> None:
        self.session = session
        self._results: Dict[Any, _Result] = {}

    def describe(self, module: Any, args: Any, kwargs: Any) -> Optional[Any]:
        """Return the module and the shapes of the arguments, or ``None`` if these do not describe the call."""
        # Hooks may collect what the layers compute.
        if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
            return None
        leaves, structure = tree_flatten((args, kwargs))
        shapes = _shapes(leaves)
        if shapes is None or not any(isinstance(leaf, FakeTensor) for leaf in leaves):
            return None
        return id(module), module.training, torch.is_autocast_enabled(), str(structure), shapes

    def answer(self, call: Any, module: Any, alike: int) -> Optional[List[Any]]:
        """Return a new result for such a call in a list, or ``None`` if it must run. ``alike``: calls that ran."""
        result = self._results.get(call)
        if result is None or result.calls < alike:
            return None
        self.session.check_time()
        name = type(module).__name__
        self.session.note(f"calls of {name} without gradients before training are assumed to be like the first {alike}")
        leaves = [fake_tensors.empty_tensor(*leaf) if isinstance(leaf, tuple) else leaf for leaf in result.shapes]
        return [tree_unflatten(leaves, result.structure)]

    def record(self, call: Any, result: Any) -> None:
        """Record the result of a call that ran."""
        leaves, structure = tree_flatten(result)
        shapes = _shapes(leaves)
        if shapes is None:
            return
        before = self._results.get(call)
        is_alike = before is not None and (before.shapes, before.structure) == (shapes, structure)
        self._results[call] = _Result(shapes, structure, before.calls + 1 if before and is_alike else 1)


def _shapes(leaves: List[Any]) -> Optional[Tuple[Any, ...]]:
    """Return plain values as they are and tensors by the arguments of ``empty_tensor``; ``None`` for other things."""
    shapes = [
        (tuple(leaf.shape), leaf.dtype, fake_tensors.true_device(leaf), leaf.stride())
        if isinstance(leaf, FakeTensor)
        else leaf
        for leaf in leaves
    ]
    is_plain = (isinstance(leaf, (FakeTensor, *PLAIN)) for leaf in leaves)
    return tuple(shapes) if all(is_plain) else None

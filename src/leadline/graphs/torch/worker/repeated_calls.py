"""Calls of a model before training that train nothing: after a few alike, only their results are made."""

import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession

ALIKE, SAMPLED = 3, 16
"""Equal results of calls with equal shapes, after which further ones are assumed to be equal too; after the first
backward pass, they are those of a sampler."""
DROPPED = 24
"""Calls with gradients, all but the last of whose graphs are freed, after which a call is assumed to train nothing."""
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class _Result(NamedTuple):
    """The shapes of a result, and how many calls in a row gave it."""

    shapes: Tuple[Any, ...]
    structure: Any
    calls: int
    graphs: Tuple[Any, ...] = ()
    """Weak references that end with the autograd graphs of the last calls."""

    @property
    def is_dropped(self) -> bool:
        """Return whether the graphs of all calls were freed, but for the last, which a variable may still hold."""
        return len(self.graphs) >= DROPPED and not any(graph() for graph in self.graphs[:-1])


class _Mark:
    """A hook of an autograd node that does nothing, and lives as long as the node."""

    def __call__(self, *_: Any) -> None:
        """Leave the gradients as they are."""


class _Unrun(torch.autograd.Function):
    """The result of a call that did not run. Nothing may train on it."""

    @staticmethod
    def forward(_: Any, anchor: Any, leaf: Any) -> Any:
        """Return a tensor without data that needs a gradient."""
        return fake_tensors.empty_tensor(*leaf)

    @staticmethod
    def backward(_: Any, *gradients: Any) -> Any:
        """Refuse, as the layers of the call were not traced."""
        raise ScriptFailure(
            f"the script trains on a model's output whose first {DROPPED} values it dropped, so the trace did not run "
            "the model: train before the model has been called so often"
        )


class RepeatedCalls:
    """Results of calls by their module and the shapes of their arguments.

    Scripts evaluate before the first step, precompute features of a whole data set, fill a replay buffer or sample
    from a diffusion model after the first step, which would take all the time of a trace. No estimate uses these calls.
    With gradients, calls count only if their graphs were freed.
    """

    def __init__(self, session: TraceSession) -> None:
        self.session = session
        self._results: Dict[Any, _Result] = {}

    def describe(self, module: Any, args: Any, kwargs: Any) -> Optional[Any]:
        """Return the module and the shapes of the arguments, or ``None`` if these do not describe the call."""
        # Hooks may collect what the layers compute.
        if any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
            return None
        return describe_call(module, args, kwargs)

    def answer(self, call: Any, module: Any, alike: int) -> Optional[List[Any]]:
        """Return a new result for such a call in a list, or ``None`` if it must run. ``alike``: calls that ran."""
        result = self._results.get(call)
        trains = torch.is_grad_enabled()
        if result is None or not (result.is_dropped if trains else result.calls >= alike):
            return None
        self.session.check_time()
        name, kind = type(module).__name__, "whose results are dropped" if trains else "without gradients"
        calls = DROPPED if trains else alike
        self.session.note(f"calls of {name} {kind} before training are assumed to be like the first {calls}")
        return [make_result(result.shapes, result.structure)]

    def record(self, call: Any, result: Any) -> None:
        """Record the result of a call that ran."""
        leaves, structure = tree_flatten(result)
        shapes = shapes_of(leaves)
        if shapes is None:
            return
        before = self._results.get(call)
        is_alike = before is not None and (before.shapes, before.structure) == (shapes, structure)
        if before is None or not is_alike:
            before = _Result(shapes, structure, 0)
        graphs = [*before.graphs, *map(_watch_graph, leaves[:1])][-DROPPED:] if torch.is_grad_enabled() else ()
        self._results[call] = before._replace(calls=before.calls + 1, graphs=tuple(graphs))


def _watch_graph(leaf: Any) -> Any:
    """Return a weak reference that ends with the graph of a result; one that never ends without a graph."""
    node = getattr(leaf, "grad_fn", None)
    if node is None:
        return lambda: True
    mark = _Mark()
    node.register_hook(mark)
    return weakref.ref(mark)


def describe_call(module: Any, args: Any, kwargs: Any, other: Any = None) -> Optional[Any]:
    """Return a module and the shapes of its arguments, or ``None`` if these do not describe the call.

    ``other`` describes an object that is neither a tensor nor a plain value.
    """
    leaves, structure = tree_flatten((args, kwargs))
    shapes = shapes_of(leaves, other)
    if shapes is None or (other is None and not any(isinstance(leaf, FakeTensor) for leaf in leaves)):
        return None
    return id(module), module.training, torch.is_grad_enabled(), torch.is_autocast_enabled(), str(structure), shapes


def make_result(shapes: Tuple[Any, ...], structure: Any) -> Any:
    """Return a new result of a call, whose layers did not run."""
    trains = torch.is_grad_enabled()
    return tree_unflatten([_make(leaf, trains) if isinstance(leaf, tuple) else leaf for leaf in shapes], structure)


def _make(leaf: Any, trains: bool) -> Any:
    if trains and leaf[1].is_floating_point:
        return _Unrun.apply(torch.zeros((), requires_grad=True), leaf)
    return fake_tensors.empty_tensor(*leaf)


def shapes_of(leaves: List[Any], other: Any = None) -> Optional[Tuple[Any, ...]]:
    """Return plain values as they are and tensors by the arguments of ``empty_tensor``; ``None`` for other things."""
    shapes = [
        (tuple(leaf.shape), leaf.dtype, fake_tensors.true_device(leaf), leaf.stride())
        if isinstance(leaf, FakeTensor)
        else leaf
        if other is None or isinstance(leaf, PLAIN)
        else other(leaf)
        for leaf in leaves
    ]
    is_plain = (isinstance(leaf, (FakeTensor, *PLAIN)) for leaf in leaves)
    return tuple(shapes) if other is not None or all(is_plain) else None

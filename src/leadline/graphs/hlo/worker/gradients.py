"""Watch what a script differentiates: the weights of its step, and gradients outside of a jitted function."""

import functools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import jax

Spec = Tuple[Tuple[int, ...], str]
"""Shape and dtype of an array."""


WRAPPING = {"JVPTracer": "primal", "LinearizeTracer": "primal", "BatchTracer": "val"}
"""Tracers of transformations, and the attribute that has the value that each stands for."""


class Differentiated(NamedTuple):
    """One array that a gradient is taken for. ``tracer`` stays alive, as its identity is compared."""

    tracer: Any
    spec: Spec
    is_argument: bool


class GradientWatch:
    """Records the arrays that JAX's gradients and Jacobians are taken for while a function is lowered."""

    def __init__(self, outside: Callable[[], None]) -> None:
        self.arrays: List[Differentiated] = []
        self._arguments: List[Any] = []
        self._outside = outside
        self.is_recording = False
        self._depth = 0
        """Gradients within which the current one is taken: those within others are no weights' gradients."""
        for name in ("grad", "value_and_grad", "jacfwd", "jacrev"):
            setattr(jax, name, self._watched(getattr(jax, name)))

    def start(self) -> None:
        """Begin the record of one function."""
        self.arrays, self._arguments, self.is_recording = [], [], True

    def stop(self) -> List[Differentiated]:
        """End the record and return it."""
        self.is_recording = False
        return self.arrays

    def mark_arguments(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records which tracers are its arguments. It is the same one for the same ``fun``."""
        try:
            marked: Callable[..., Any] = self._marked(fun)
        except TypeError:  # it cannot be hashed
            marked = self._mark(fun)
        return marked

    def _mark(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fun)
        def function(*args: Any, **kwargs: Any) -> Any:
            if self.is_recording:
                self._arguments += jax.tree.leaves((args, kwargs))
            return fun(*args, **kwargs)

        return function

    @functools.cached_property
    def _marked(self) -> Any:
        return functools.lru_cache(maxsize=None)(self._mark)

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def transform(fun: Any, *settings: Any, **named: Any) -> Any:
            function = original(fun, *settings, **named)
            argnums = named.get("argnums", settings[0] if settings else 0)
            positions = argnums if isinstance(argnums, (tuple, list)) else (argnums,)

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if not self._depth:
                    self._record([args[place] for place in positions if place < len(args)])
                self._depth += 1
                try:
                    return function(*args, **kwargs)
                finally:
                    self._depth -= 1

            return call

        return transform

    def _record(self, values: List[Any]) -> None:
        if not self.is_recording:
            self._outside()
            return
        known = {id(tracer) for tracer in self._arguments}
        for leaf in jax.tree.leaves(values):
            tracer = _primal(leaf)
            shape, dtype = getattr(tracer, "shape", None), getattr(tracer, "dtype", None)
            if shape is not None and dtype is not None:
                self.arrays.append(Differentiated(tracer, (tuple(shape), str(dtype)), id(tracer) in known))


def _primal(tracer: Any) -> Any:
    """Return the value that a tracer of a transformation stands for: without tangents, of a whole batch."""
    while type(tracer).__name__ in WRAPPING:
        tracer = getattr(tracer, WRAPPING[type(tracer).__name__])
    return tracer


def weight_specs(arrays: List[Differentiated], results: List[Any]) -> List[Spec]:
    """Return the specs of the weights among differentiated arrays.

    A gradient may also be taken for an input, as in adversarial training. Weights come back with their shape, updated
    or as gradients.
    """
    distinct = list({id(array.tracer): array for array in arrays}.values())
    distinct = [array for array in distinct if array.is_argument] or list(_without_copies(distinct))
    returned = {(tuple(result.shape), str(result.dtype)) for result in results}
    return [array.spec for array in distinct if array.spec in returned] or [array.spec for array in distinct]


def _without_copies(arrays: List[Differentiated]) -> Iterator[Differentiated]:
    """Yield arrays of each spec once for each different array of it that one trace differentiates.

    The body of a loop may be traced more than once, with tracers of its own each time.
    """
    traces: Dict[Any, Dict[Spec, int]] = {}
    kept: Dict[Spec, int] = {}
    for array in arrays:
        trace = getattr(array.tracer, "_trace", None)
        counts = traces.setdefault(id(trace), {})
        counts[array.spec] = counts.get(array.spec, 0) + 1
        if counts[array.spec] > kept.get(array.spec, 0):
            kept[array.spec] = counts[array.spec]
            yield array

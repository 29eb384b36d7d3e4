"""Find the training loop within a jitted function (``lax.scan``, ``lax.fori_loop``), and the batch of a step."""

import collections
import math
from typing import Any, Collection, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import jax

from leadline.graphs.hlo.worker.gradients import Spec

PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot")
SLICES = ("dynamic_slice", "gather", "slice")
RESHAPES = ("reshape", "squeeze", "convert_element_type", "copy", "broadcast_in_dim")


class TrainingLoop(NamedTuple):
    """The body of a loop that takes a training step in each trip.

    ``times`` is ``None`` if it depends on the run. The first ``constants`` inputs of the body stay the same.
    """

    body: Any
    times: Optional[int]
    constants: int


def training_loop(closed: Any, arguments: List[Any]) -> Optional[TrainingLoop]:
    """Return the innermost training loop of a jaxpr, with its trips in one call.

    ``arguments`` are the leaves that the jaxpr takes: some may be the bounds of a loop.
    """
    numbers = {
        variable: int(value)
        for variable, value in zip([*closed.jaxpr.constvars, *closed.jaxpr.invars], [*closed.consts, *arguments])  # noqa: B905 - Python 3.9
        if _is_whole(value)
    }
    loop = _find_loop(closed.jaxpr, numbers)
    if loop is None:
        return None
    inner = training_loop(loop.body, [])
    if inner is None:
        return loop
    times = None if None in (inner.times, loop.times) else inner.times * loop.times  # type: ignore[operator]
    return inner._replace(times=times)


def _is_whole(value: Any) -> bool:
    if getattr(value, "is_deleted", bool)():  # its memory was donated to a result
        return False
    is_number = not getattr(value, "shape", None) and not isinstance(value, (bool, jax.core.Tracer))
    return is_number and "int" in str(getattr(value, "dtype", type(value)))


def _find_loop(jaxpr: Any, numbers: Dict[Any, int]) -> Optional[TrainingLoop]:
    for equation in jaxpr.eqns:
        if _is_differentiated(equation):
            continue
        name, params = equation.primitive.name, equation.params
        if name in ("scan", "while"):
            body = params["jaxpr" if name == "scan" else "body_jaxpr"]
            first = params["num_consts" if name == "scan" else "body_nconsts"]
            carried = params["num_carry"] if name == "scan" else len(body.jaxpr.outvars)
            if _trains(body.jaxpr) and _changes_weights(body.jaxpr, first, carried):
                times = params["length"] if name == "scan" else _trips(equation, numbers)
                return TrainingLoop(body, times, first)
            continue
        for inner in _inner(equation):
            passed = zip(inner.invars, equation.invars[len(equation.invars) - len(inner.invars) :])  # noqa: B905
            loop = _find_loop(inner, {into: numbers[value] for into, value in passed if _number(value, numbers)})
            if loop is not None:
                return loop
    return None


def _number(value: Any, numbers: Dict[Any, int]) -> bool:
    return not hasattr(value, "val") and value in numbers


def _inner(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation calls."""
    for param in equation.params.values():
        for member in param if isinstance(param, (tuple, list)) else (param,):
            jaxpr = getattr(member, "jaxpr", member)
            if hasattr(jaxpr, "eqns"):
                yield jaxpr


def _scope(equation: Any) -> str:
    return str(equation.source_info.name_stack)


def _is_differentiated(equation: Any) -> bool:
    return "jvp(" in _scope(equation) or "transpose(" in _scope(equation)


def _trains(jaxpr: Any) -> bool:
    """Return whether a reverse-mode gradient begins and ends in a jaxpr. Scopes are relative to the loop around."""
    return any("transpose(" in _scope(equation) or any(map(_trains, _inner(equation))) for equation in jaxpr.eqns)


def _multiplies(equation: Any) -> bool:
    return equation.primitive.name in PRODUCTS or any(any(map(_multiplies, inner.eqns)) for inner in _inner(equation))


def _changes_weights(body: Any, first: int, carried: int) -> bool:
    """Return whether a loop changes what its forward pass multiplies with: weights, and no sum of gradients."""
    pairs = zip(body.invars[first : first + carried], body.outvars)  # noqa: B905 - Python 3.9 has no strict
    # A result that is an input is not computed: an earlier time of a sequence, carried to the next trip.
    copies = set(body.invars)
    reached = {
        into for into, out in pairs if "float" in str(into.aval.dtype) and (hasattr(out, "val") or out not in copies)
    }
    has_products = any(map(_multiplies, body.eqns))
    for equation in body.eqns:
        if any(not hasattr(value, "val") and value in reached for value in equation.invars):
            if _multiplies(equation) if has_products else _is_differentiated(equation):
                return True
            reached.update(equation.outvars)
    return False


def _trips(equation: Any, numbers: Dict[Any, int]) -> Optional[int]:
    """Return the trips of ``while i < n`` if both ends are known, as of ``fori_loop`` with arguments for bounds."""
    condition = equation.params["cond_jaxpr"].jaxpr
    constants, states = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    values = [*equation.invars[:constants], *equation.invars[constants + states :]]
    comparison = condition.eqns[-1] if len(condition.eqns) == 1 else None
    if comparison is None or comparison.primitive.name != "lt":
        return None
    known = dict(zip(condition.invars, values))  # noqa: B905 - Python 3.9 has no strict
    ends = [_bound(value if hasattr(value, "val") else known.get(value), numbers) for value in comparison.invars]
    return None if None in ends else max(ends[1] - ends[0], 0)  # type: ignore[operator]


def _bound(value: Any, numbers: Dict[Any, int]) -> Optional[int]:
    if hasattr(value, "val"):
        return int(value.val) if _is_whole(value.val) else None
    return numbers.get(value)


def batch_size(
    jaxpr: Any, weights: Collection[Spec], constant: Sequence[bool], state: Sequence[bool] = ()
) -> Optional[int]:
    """Return the first dimension of the largest input of a step: no state that it returns, no weight, no key.

    A data set of which the step takes a slice counts as that slice. Other inputs that are ``constant``, the same in
    each step, such as frozen weights, count if there is nothing else. ``state`` marks inputs that earlier steps
    returned. Without such marks, inputs are state if a result has their shape.
    """
    specs = [_spec(variable) for variable in jaxpr.invars]
    surplus = collections.Counter(specs)
    surplus.subtract(map(_spec, jaxpr.outvars))
    kept = [not is_state for is_state in state] if any(state) else [surplus[spec] > 0 for spec in specs]
    inputs = [place for place, spec in enumerate(specs) if kept[place] and spec[0] and not _is_key(spec)]
    inputs = [place for place in inputs if specs[place] not in weights] or inputs
    sliced = {place: _sliced(jaxpr, jaxpr.invars[place]) for place in inputs}
    varying = [place for place in inputs if sliced[place] or not constant[place]]
    shapes = [shape for place in varying or inputs for shape in (sliced[place] or [specs[place][0]])]
    largest = max(shapes, key=math.prod, default=None)
    return int(largest[0]) if largest else None


def _spec(variable: Any) -> Spec:
    return tuple(getattr(variable.aval, "shape", ())), str(getattr(variable.aval, "dtype", ""))


def _is_key(spec: Spec) -> bool:
    return "key" in spec[1] or (spec[1] == "uint32" and spec[0][-1] == 2)


def _sliced(jaxpr: Any, variable: Any) -> List[Tuple[int, ...]]:
    """Return the shapes of the slices that are taken of a variable; none if it is read whole."""
    shapes: List[Tuple[int, ...]] = []
    for equation in jaxpr.eqns:
        places = [place for place, value in enumerate(equation.invars) if value is variable]
        if not places:
            continue
        if equation.primitive.name in SLICES and places == [0]:
            shapes.append(tuple(equation.outvars[0].aval.shape))
        elif equation.primitive.name in RESHAPES:
            within = _sliced(jaxpr, equation.outvars[0])
            if not within:
                return []
            shapes += within
        else:
            inner = next(_inner(equation), None)
            if inner is None or len(inner.invars) != len(equation.invars):
                return []
            within = [shape for place in places for shape in _sliced(inner, inner.invars[place])]
            if not within:
                return []
            shapes += within
    return shapes

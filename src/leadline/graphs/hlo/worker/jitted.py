"""Lower the jitted functions that a script calls, instead of running them, and join those of one step."""

import functools
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp

from leadline.graphs.hlo.worker.gradients import Differentiated, GradientWatch, weight_specs
from leadline.graphs.torch.worker.loops import EnclosingLoop

CHEAP_FLOPS = 1e6
"""Functions below this run for real, as their results may steer the script: keys, counters, schedules."""
MOST_ELEMENTS = 64
"""Elements of a constant that a module's text shows."""
BACKWARD = "transpose(jvp"
"""What JAX writes into the scopes of a reverse-mode gradient."""


JIT, MAP = jax.jit, jax.pmap
"""JAX's own, before they are replaced."""


class Program:
    """One jitted function, lowered for arguments of one signature."""

    def __init__(
        self, jitted: Any, name: str, lowered: Any, *, is_mapped: bool, jaxpr: Any, differentiated: List[Differentiated]
    ) -> None:
        self.jitted, self.name, self.is_mapped, self.jaxpr = jitted, name, is_mapped, jaxpr
        self.flops = _flops(lowered)
        self.text = module_text(lowered)
        self.trains = BACKWARD in self.text
        self.results, self.result_tree = jax.tree.flatten(lowered.out_info)
        self.weights = weight_specs(differentiated, self.results)
        self.loops: List[EnclosingLoop] = []
        self.later = ""
        """Place of further training after the loops."""

    @property
    def is_cheap(self) -> bool:
        """True if the function takes no time worth counting."""
        return self.flops < CHEAP_FLOPS


class Call(NamedTuple):
    """One call of a program: the leaves of its arguments, how they are nested, and the leaves of its result."""

    program: Program
    arguments: List[Any]
    tree: Any
    results: List[Any]


class JittedFunction:
    """What ``jax.jit`` returns to the script: calls go to ``call``, all else to JAX's own object."""

    def __init__(self, function: Any, jitted: Any, call: Callable[..., Any], *, is_mapped: bool) -> None:
        functools.update_wrapper(self, function)
        self.jitted, self._call, self.is_mapped = jitted, call, is_mapped

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Let ``call`` answer."""
        return self._call(self, args, kwargs)

    def __get__(self, owner: Any, _: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["jitted"], name)


def replace_jit(call: Callable[..., Any], gradients: GradientWatch) -> None:
    """Let ``jax.jit``, which ``nnx.jit`` calls, ``pjit`` and ``pmap`` return a ``JittedFunction`` from now on.

    XLA compiles a loop of ``jax.lax`` outside of a jitted function as a whole, too, so it counts as one.
    """
    from jax.experimental import pjit

    for owner, name in ((jax, "jit"), (jax, "pmap"), (pjit, "pjit")):
        setattr(owner, name, _replacement(getattr(owner, name), call, gradients))
    jax.vmap = _mapping(jax.vmap, jax.jit)
    jax.lax.fori_loop = _compiled_loop(jax.lax.fori_loop, call, gradients, ("lower", "upper", "body_fun", "init_val"))
    jax.lax.scan = _compiled_loop(jax.lax.scan, call, gradients, ("f", "init", "xs"))


def _replacement(original: Any, call: Callable[..., Any], gradients: GradientWatch) -> Any:
    @functools.wraps(original)
    def transform(fun: Any = None, *args: Any, **kwargs: Any) -> Any:
        if fun is None:  # as a decorator with settings alone
            return functools.partial(transform, *args, **kwargs)
        jitted = original(gradients.mark_arguments(fun), *args, **kwargs)
        return JittedFunction(fun, jitted, call, is_mapped=original is MAP)

    return transform


def _mapping(original: Any, jit: Any) -> Any:
    """Return a ``vmap`` whose call of a jitted function, outside of a trace, is one call on all inputs."""

    @functools.wraps(original)
    def mapping(fun: Any, *args: Any, **kwargs: Any) -> Any:
        mapped = original(fun, *args, **kwargs)
        if not isinstance(fun, JittedFunction):
            return mapped
        jitted = jit(mapped)

        @functools.wraps(mapped)
        def call(*inputs: Any, **named: Any) -> Any:
            return (jitted if is_outside() else mapped)(*inputs, **named)

        return call

    return mapping


def _compiled_loop(
    original: Any, call: Callable[..., Any], gradients: GradientWatch, names: Tuple[str, ...]
) -> Callable[..., Any]:
    """Return a loop whose call outside of a trace is that of a function with its arrays for arguments."""

    @functools.wraps(original)
    def loop(*args: Any, **kwargs: Any) -> Any:
        if not is_outside():
            return original(*args, **kwargs)
        settings = {**dict(zip(names, args)), **kwargs}  # noqa: B905 - Python 3.9 has no strict
        arrays = {name: settings.pop(name) for name in ("init_val", "init", "xs") if name in settings}
        if len(args) > len(names) or ("body_fun" not in settings and "f" not in settings):
            return original(*args, **kwargs)

        def run(arrays: Any) -> Any:
            return original(**settings, **arrays)

        jitted = JIT(gradients.mark_arguments(run))
        return call(
            JittedFunction(settings.get("body_fun", settings.get("f")), jitted, call, is_mapped=False), (arrays,), {}
        )

    return loop


def is_outside() -> bool:
    """Return whether no transformation runs, as far as this version of jax tells."""
    try:
        from jax._src.core import trace_state_clean
    except ImportError:
        return False
    return bool(trace_state_clean())


def is_traced(leaves: List[Any]) -> bool:
    """Return whether a call is inside of a transformation, which JAX itself must see."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def signature(leaves: List[Any], tree: Any) -> Any:
    """Return what a program is lowered for: shapes and dtypes of arrays, the values of words and flags."""

    def describe(leaf: Any) -> Any:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return tuple(leaf.shape), str(leaf.dtype)
        return leaf if isinstance(leaf, (str, bool, type(None))) else type(leaf)

    return tree, tuple(describe(leaf) for leaf in leaves)


def assumed_results(program: Program, arguments: List[Any]) -> List[Any]:
    """Return arrays of the shapes of the results: an argument's contents where one has that shape, else zeros.

    So a new state has the memory of the old one, and a script may train a model that this machine could not step.
    """
    unused: Dict[Any, List[Any]] = {}
    for leaf in arguments:
        if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) == 1 and not leaf.is_deleted():
            unused.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    return [_array_like(result, unused.get((result.shape, result.dtype))) for result in program.results]


def _array_like(result: Any, unused: Optional[List[Any]]) -> Any:
    if jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), result.shape)
    if unused:
        leaf = unused.pop()
        # An object of its own, by which a later call is known to take this result.
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [leaf])
    return jnp.zeros(result.shape, result.dtype)


def module_text(lowered: Any) -> str:
    """Return StableHLO, with its scopes if this version of jax writes them, and without the numbers of large constants.

    A function that closes over a data set has it for a constant, whose text is longer than the data.
    """
    try:
        operation = lowered.compiler_ir("stablehlo").operation
        return str(operation.get_asm(enable_debug_info=True, large_elements_limit=MOST_ELEMENTS))
    except (AttributeError, TypeError):
        return str(lowered.as_text())


def _flops(lowered: Any) -> float:
    try:
        analysis = lowered.cost_analysis()
    except Exception:  # noqa: BLE001 - not every backend and version counts, and a program that is not counted is costly
        return float("inf")
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    return float((analysis or {}).get("flops", 0.0))


def body_text(body: Any) -> str:
    """Return the module of one trip of a loop."""
    try:
        from jax.extend.core import jaxpr_as_fun
    except ImportError:
        from jax.core import jaxpr_as_fun
    shapes = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in body.jaxpr.invars]
    return module_text(JIT(jaxpr_as_fun(body)).lower(*shapes))


def step_text(calls: List[Call]) -> str:
    """Return the module of one step: of its only call, or of all its calls one after the other.

    A result that a later call takes is a value within the step. All else is an argument, once.
    """
    if len(calls) == 1:
        return calls[0].program.text
    origins: Dict[int, Tuple[int, int, bool]] = {}
    kept: List[List[int]] = []
    sources: List[List[Any]] = []
    for number, call in enumerate(calls):
        sources.append([origins.get(id(leaf)) for leaf in call.arguments])
        arrays = [at for at, leaf in enumerate(call.arguments) if isinstance(leaf, jax.Array) or hasattr(leaf, "dtype")]
        kept.append([at for at in arrays if sources[number][at] is None])
        origins.update({id(call.arguments[at]): (number, at, False) for at in kept[number]})
        origins.update({id(leaf): (number, at, True) for at, leaf in enumerate(call.results)})

    def step(*inputs: Any) -> Any:
        arguments: List[List[Any]] = []
        results: List[List[Any]] = []
        for number, call in enumerate(calls):
            leaves = list(call.arguments)
            for at, leaf in zip(kept[number], jax.tree.leaves(inputs[number])):  # noqa: B905 - Python 3.9 has no strict
                leaves[at] = leaf
            for at, source in enumerate(sources[number]):
                if source is not None:
                    leaves[at] = (results if source[2] else arguments)[source[0]][source[1]]
            arguments.append(leaves)
            args, kwargs = jax.tree.unflatten(call.tree, leaves)
            results.append(jax.tree.leaves(call.program.jitted(*args, **kwargs)))
        return results

    def shapes(number: int) -> Any:
        leaves: List[Any] = [None] * len(calls[number].arguments)
        for at in kept[number]:
            leaf = calls[number].arguments[at]
            leaves[at] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return jax.tree.unflatten(calls[number].tree, leaves)

    return module_text(JIT(step).lower(*map(shapes, range(len(calls)))))

"""Lower a JAX function from shapes alone, and compile it for a target device, in the user's environment."""

import importlib
import inspect
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from leadline.graphs.torch.worker import scratch
from leadline.graphs.torch.worker.confinement import Confinement
from leadline.graphs.torch.worker.main import end_with, failure_document
from leadline.graphs.torch.worker.session import ScriptFailure

try:
    import jax

    from leadline.graphs.hlo.worker.jitted import module_text
except ImportError:
    jax = None

Step = Tuple[Callable[..., Any], Tuple[Any, ...], List[str]]
"""The function to lower, its arguments, and notes."""


def serve(request: Dict[str, Any], confinement: Confinement) -> None:
    """Carry out one request, write its answer and end the process."""
    scratch.redirect_writes(str(Path(request["answer"]).parent), caches=not confinement.refuses_writes)
    sys.path.insert(0, str(Path(request["target"]).resolve().parent))
    try:
        answer = _lower(request)
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises becomes an answer
        failure = failure_document(error, "lowering stopped here")
        if not isinstance(error, ScriptFailure):
            failure["location"] = failure["location"] or request["target"]
        answer = {"failure": failure}
    end_with(answer, request)


def _lower(request: Dict[str, Any]) -> Dict[str, Any]:
    if jax is None:
        return {"failure": {"reason": f"{sys.executable} has no jax: install it there, as in pip install jax"}}
    shapes = [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in request["inputs"]]
    step, arguments, notes = _step(request, shapes)
    topology = request["topology"]
    arguments = _as_shapes(arguments, _sharding(topology) if topology else None)
    lowered = (step if hasattr(step, "lower") else jax.jit(step)).lower(*arguments)
    answer: Dict[str, Any] = {"notes": notes, "jax": jax.__version__}
    if not topology:
        return {**answer, "text": module_text(lowered)}
    compiled = lowered.compile()
    return {**answer, "text": compiled.as_text(), "memory": _memory(compiled)}


def _step(request: Dict[str, Any], shapes: List[Any]) -> Step:
    """Return the step from the result of the user's function."""
    build = runpy.run_path(request["target"], run_name="leadline_model").get(request["function"])
    if not callable(build):
        raise ScriptFailure(f"{request['target']} defines no function {request['function']!r}: check the name")
    built = _call_builder(build, shapes)
    if isinstance(built, tuple) and len(built) == 2 and callable(built[0]):
        if request["optimizer"]:
            raise ScriptFailure(
                f"{request['function']}() returns its own step, which --optimizer does not change: leave it out"
            )
        arguments = built[1] if isinstance(built[1], (tuple, list)) else (built[1],)
        return built[0], tuple(arguments), []
    if not shapes:
        raise ScriptFailure(
            f"{request['function']}() returned {type(built).__name__}: return (step, arguments), or give the model's "
            "input, such as --input 64x224x224x3"
        )
    if hasattr(built, "init") and hasattr(built, "apply"):
        return _linen_step(built, shapes, request)
    nnx = _nnx()
    if nnx is not None and isinstance(built, nnx.Module):
        return _nnx_step(nnx, built, shapes, request)
    raise ScriptFailure(
        f"{request['function']}() returned {type(built).__name__}: return (step, arguments), or a flax module"
    )


def _call_builder(build: Any, shapes: List[Any]) -> Any:
    """Call the user's function, with the inputs if it takes any. A module of nnx is made without its arrays."""
    parameters = inspect.signature(build).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        argument for argument in parameters if argument.default is argument.empty and argument.kind in positional
    ]
    variadic = any(argument.kind is argument.VAR_POSITIONAL for argument in parameters)
    if required or variadic:
        if len(required) > len(shapes):
            raise ScriptFailure(
                f"{build.__name__}() takes {len(required)} inputs and {len(shapes)} were given: add --input"
            )
        return build(*shapes) if variadic else build(*shapes[: len(required)])
    nnx = _nnx() if "flax.nnx" in sys.modules else None
    if nnx is not None:
        try:
            module = nnx.eval_shape(build)
        except (TypeError, ValueError):  # it does not return a module of nnx
            return build()
        if isinstance(module, nnx.Module):
            return module
    return build()


def _nnx() -> Optional[Any]:
    try:
        return importlib.import_module("flax.nnx")
    except ImportError:
        return None


def _linen_step(model: Any, shapes: List[Any], request: Dict[str, Any]) -> Step:
    """Return the step of a flax linen module: ``apply``, or a training step around it."""
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    variables = jax.eval_shape(lambda *xs: model.init(keys, *xs, **_mode(model, training=False)), *shapes)
    training = request["phase"] == "training"
    weights = variables.get("params", {})
    other_variables = {name: values for name, values in variables.items() if name != "params"}

    def forward(params: Any, state: Any, *xs: Any) -> Any:
        every, mode = {"params": params, **state}, _mode(model, training=training)
        if not training:
            return model.apply(every, *xs, **mode), state
        return model.apply(every, *xs, rngs={"dropout": jax.random.key(0)}, mutable=list(other_variables), **mode)

    return _flax_step(forward, weights, other_variables, shapes, request)


def _mode(model: Any, training: bool) -> Dict[str, bool]:
    """Return the keyword by which a module's call learns whether it trains, if it has one."""
    parameters = inspect.signature(type(model).__call__).parameters
    modes = {"train": training, "training": training, "deterministic": not training}
    name = next((name for name in modes if name in parameters), None)
    return {name: modes[name]} if name else {}


def _nnx_step(nnx: Any, model: Any, shapes: List[Any], request: Dict[str, Any]) -> Step:
    """Return the step of a flax nnx module."""
    (model.train if request["phase"] == "training" else model.eval)()
    definition, weights, other_variables = nnx.split(model, nnx.Param, ...)

    def forward(params: Any, state: Any, *xs: Any) -> Any:
        whole = nnx.merge(definition, params, state)
        output = whole(*xs)
        return output, nnx.split(whole, nnx.Param, ...)[2]

    return _flax_step(forward, weights, other_variables, shapes, request)


def _flax_step(forward: Any, weights: Any, state: Any, shapes: List[Any], request: Dict[str, Any]) -> Step:
    """Return the forward pass, or a training step: the outputs' mean as loss, its gradient, and optax's update."""
    if request["phase"] != "training":
        return (lambda params, state, *xs: forward(params, state, *xs)[0]), (weights, state, *shapes), []
    jnp = jax.numpy
    try:
        optax = importlib.import_module("optax")
    except ImportError as error:
        raise ScriptFailure(
            f"{sys.executable} has no optax, which trains a model that comes without a step: install it, or return "
            "(step, arguments)"
        ) from error
    name = request["optimizer"] or "adamw"
    rule = optax.sgd(0.01, momentum=0.9) if name == "momentum" else getattr(optax, name)(0.001)

    def loss(params: Any, variables: Any, *xs: Any) -> Any:
        output, after = forward(params, variables, *xs)
        leaves = [leaf for leaf in jax.tree.leaves(output) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        if not leaves:
            raise ScriptFailure(
                "the model's output holds no floating-point array: return one that a loss can be made from"
            )
        return sum(leaf.astype(jnp.float32).mean() for leaf in leaves), after

    def step(params: Any, memory: Any, variables: Any, *xs: Any) -> Any:
        (value, after), gradient = jax.value_and_grad(loss, has_aux=True)(params, variables, *xs)
        update, memory = rule.update(gradient, memory, params)
        return jax.tree.map(lambda old, new: old + new, params, update), memory, after, value

    memory = jax.eval_shape(rule.init, weights)
    note = f"the loss is the mean of the outputs, the optimizer optax.{name}"
    return jax.jit(step, donate_argnums=(0, 1, 2)), (weights, memory, state, *shapes), [note]


def _as_shapes(arguments: Tuple[Any, ...], sharding: Any) -> Tuple[Any, ...]:
    """Return the arguments as shapes, so that nothing is computed or copied. Other leaves stay."""

    def shape(leaf: Any) -> Any:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return leaf

    return tuple(jax.tree.map(shape, argument) for argument in arguments)


def _sharding(topology: Dict[str, str]) -> Any:
    """Return the place on the first device of a described topology."""
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    try:
        devices = topologies.get_topology_desc(**topology).devices
    except Exception as error:
        raise ScriptFailure(
            f"XLA cannot compile for {topology['platform']} here: {' '.join(str(error).split())[:200]}; "
            f"install its compiler beside jax, as in pip install 'leadline[xla-{topology['platform']}]'"
        ) from error
    return SingleDeviceSharding(devices[0])


def _memory(compiled: Any) -> Dict[str, int]:
    """Return the compiler's memory figures in bytes, or {} if it has none."""
    analysis = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "generated_code")
    return {name: int(getattr(analysis, f"{name}_size_in_bytes", 0)) for name in names} if analysis is not None else {}

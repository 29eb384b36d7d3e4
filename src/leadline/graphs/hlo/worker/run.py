"""Lower a JAX function from shapes alone, and compile it where a target is named; started by its path.

Run as ``python run.py REQUEST.json`` in the user's environment. The answer is a file: the module's text, or why not.
"""

import importlib
import inspect
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple


class UnusableFunction(Exception):
    """What the named function returned cannot be lowered; the message says why and what to return."""


def main(request_path: str) -> None:
    """Carry out one request and write its answer."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
        del sys.path[0]
    sys.path.insert(0, str(Path(request["path"]).resolve().parent))
    try:
        answer = _lower(request)
    except Exception as error:  # noqa: BLE001 - whatever a user's code raises becomes an answer
        answer = {"failure": _failure(error, request["path"])}
    target = Path(request["answer"])
    part = target.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.replace(target)
    sys.stdout.flush()
    os._exit(0)


def _lower(request: Dict[str, Any]) -> Dict[str, Any]:
    try:
        import jax
    except ImportError:
        return {"failure": {"reason": f"{sys.executable} has no jax: install it there, as in pip install jax"}}
    shapes = [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in request["inputs"]]
    step, arguments, notes = _step(request, shapes)
    arguments = _abstract(arguments)
    target = request.get("target")
    if target:
        arguments = _placed(arguments, target)
    lowered = _jitted(step).lower(*arguments)
    answer: Dict[str, Any] = {"notes": notes, "jax": jax.__version__}
    if not target:
        return {**answer, "text": _text(lowered)}
    compiled = lowered.compile()
    return {**answer, "text": compiled.as_text(), "memory": _memory(compiled)}


def _text(lowered: Any) -> str:
    """Return StableHLO with its scopes, where this version of jax writes them."""
    try:
        return str(lowered.as_text(debug_info=True))
    except TypeError:
        return str(lowered.as_text())


def _step(request: Dict[str, Any], shapes: List[Any]) -> Tuple[Callable[..., Any], Tuple[Any, ...], List[str]]:
    """Return the function that is lowered and its arguments, from whatever the user's function returns."""
    names = runpy.run_path(request["path"], run_name="leadline_model")
    build = names.get(request["function"])
    if not callable(build):
        raise UnusableFunction(f"{request['path']} defines no function {request['function']!r}: name one that is there")
    made = _built(build, shapes)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        if request["optimizer"]:
            raise UnusableFunction(
                f"{request['function']}() returns a step of its own, which --optimizer does not change: leave it out"
            )
        arguments = made[1] if isinstance(made[1], (tuple, list)) else (made[1],)
        return made[0], tuple(arguments), []
    if not shapes:
        raise UnusableFunction(
            f"{request['function']}() returned {type(made).__name__}: return (step, arguments), or give the model's "
            "input, such as --input 64x224x224x3"
        )
    if hasattr(made, "init") and hasattr(made, "apply"):
        return _linen(made, shapes, request)
    nnx = _nnx()
    if nnx is not None and isinstance(made, nnx.Module):
        return _graph_module(nnx, made, shapes, request)
    raise UnusableFunction(
        f"{request['function']}() returned {type(made).__name__}: return (step, arguments), or a flax module"
    )


def _built(build: Any, shapes: List[Any]) -> Any:
    """Call the user's function, with the inputs if it takes any; a module of nnx is made without its arrays."""
    wants = [
        one for one in inspect.signature(build).parameters.values()
        if one.default is inspect.Parameter.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    variadic = any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(build).parameters.values())
    if wants or variadic:
        if len(wants) > len(shapes):
            raise UnusableFunction(
                f"{build.__name__}() takes {len(wants)} inputs and {len(shapes)} were given: add --input"
            )
        return build(*shapes) if variadic else build(*shapes[: len(wants)])
    nnx = _nnx() if "flax.nnx" in sys.modules else None
    if nnx is not None:
        try:
            made = nnx.eval_shape(build)
        except (TypeError, ValueError):  # it does not return a module of nnx
            return build()
        if isinstance(made, nnx.Module):
            return made
    return build()


def _nnx() -> Optional[Any]:
    try:
        return importlib.import_module("flax.nnx")
    except ImportError:
        return None


def _linen(model: Any, shapes: List[Any], request: Dict[str, Any]) -> Tuple[Any, Tuple[Any, ...], List[str]]:
    """Return the step of a flax linen module: ``apply``, or its training."""
    import jax

    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    variables = jax.eval_shape(lambda *xs: model.init(keys, *xs, **_mode(model, training=False)), *shapes)
    training = request["phase"] == "training"
    weights, rest = variables.get("params", {}), {name: one for name, one in variables.items() if name != "params"}

    def forward(params: Any, state: Any, *xs: Any) -> Any:
        every, mode = {"params": params, **state}, _mode(model, training=training)
        if not training:
            return model.apply(every, *xs, **mode), state
        return model.apply(every, *xs, rngs={"dropout": jax.random.key(0)}, mutable=list(rest), **mode)

    if not training:
        return (lambda params, state, *xs: forward(params, state, *xs)[0]), (weights, rest, *shapes), []
    return _trained(forward, weights, rest, shapes, request)


def _mode(model: Any, training: bool) -> Dict[str, bool]:
    """Return the keyword by which a module's call is told whether it trains, if it has one."""
    known = inspect.signature(type(model).__call__).parameters
    if "train" in known:
        return {"train": training}
    if "training" in known:
        return {"training": training}
    return {"deterministic": not training} if "deterministic" in known else {}


def _graph_module(
    nnx: Any, model: Any, shapes: List[Any], request: Dict[str, Any]
) -> Tuple[Any, Tuple[Any, ...], List[str]]:
    """Return the step of a flax nnx module."""
    training = request["phase"] == "training"
    (model.train if training else model.eval)()
    definition, weights, rest = nnx.split(model, nnx.Param, ...)

    def forward(params: Any, state: Any, *xs: Any) -> Any:
        whole = nnx.merge(definition, params, state)
        output = whole(*xs)
        return output, nnx.split(whole, nnx.Param, ...)[2]

    if not training:
        return (lambda params, state, *xs: forward(params, state, *xs)[0]), (weights, rest, *shapes), []
    return _trained(forward, weights, rest, shapes, request)


def _trained(
    forward: Any, weights: Any, state: Any, shapes: List[Any], request: Dict[str, Any]
) -> Tuple[Any, Tuple[Any, ...], List[str]]:
    """Return a training step: the mean of the outputs as the loss, its gradient, and the update rule of optax."""
    import jax
    import jax.numpy as jnp

    try:
        optax = importlib.import_module("optax")
    except ImportError as error:
        raise UnusableFunction(
            f"{sys.executable} has no optax, which trains a model that comes without a step: install it, or return "
            "(step, arguments)"
        ) from error
    name = request["optimizer"] or "adamw"
    rule = optax.sgd(0.01, momentum=0.9) if name == "momentum" else getattr(optax, name)(0.001)

    def loss(params: Any, rest: Any, *xs: Any) -> Any:
        output, after = forward(params, rest, *xs)
        leaves = [leaf for leaf in jax.tree.leaves(output) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        if not leaves:
            raise UnusableFunction(
                "the model's output holds no floating-point array: return one that a loss can be made from"
            )
        return sum(leaf.astype(jnp.float32).mean() for leaf in leaves), after

    def step(params: Any, memory: Any, rest: Any, *xs: Any) -> Any:
        (value, after), gradient = jax.value_and_grad(loss, has_aux=True)(params, rest, *xs)
        update, memory = rule.update(gradient, memory, params)
        return jax.tree.map(lambda old, new: old + new, params, update), memory, after, value

    memory = jax.eval_shape(rule.init, weights)
    note = f"the loss is the mean of the outputs, the optimizer optax.{name}"
    return jax.jit(step, donate_argnums=(0, 1, 2)), (weights, memory, state, *shapes), [note]


def _jitted(step: Any) -> Any:
    import jax

    return step if hasattr(step, "lower") else jax.jit(step)


def _abstract(arguments: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return the arguments as shapes: nothing is computed or copied; what is no array stays."""
    import jax

    def shape(leaf: Any) -> Any:
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return leaf

    return tuple(jax.tree.map(shape, one) for one in arguments)


def _placed(arguments: Tuple[Any, ...], target: Dict[str, str]) -> Tuple[Any, ...]:
    """Return the arguments on the first device of a topology that is only described."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    try:
        topology = topologies.get_topology_desc(**target)
    except Exception as error:
        raise UnusableFunction(
            f"XLA cannot compile for {target['platform']} here: {' '.join(str(error).split())[:200]}; "
            f"install its compiler beside jax, as in pip install 'leadline[xla-{target['platform']}]'"
        ) from error
    where = SingleDeviceSharding(topology.devices[0])

    def place(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
        return leaf

    return tuple(jax.tree.map(place, one) for one in arguments)


def _memory(compiled: Any) -> Dict[str, int]:
    """Return what the compiler says of memory, in bytes; empty where it says nothing."""
    found = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "generated_code")
    return {name: int(getattr(found, f"{name}_size_in_bytes", 0)) for name in names} if found is not None else {}


def _failure(error: BaseException, path: str) -> Dict[str, Any]:
    """Say why, and at which line of the user's own code."""
    own = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and frame.filename != __file__ and not frame.filename.startswith("<")
        and not frame.filename.startswith(str(Path(os.__file__).parent))
    ]  # fmt: skip
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    said = " ".join(str(error).split())[:300].rstrip(".")
    if isinstance(error, UnusableFunction):
        return {"reason": said, "location": None}
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{error.filename}:{error.lineno}"
    return {
        "reason": f"{type(error).__name__}: {said or 'no message'}; lowering stopped here",
        "location": place or path,
    }


if __name__ == "__main__":
    main(sys.argv[1])

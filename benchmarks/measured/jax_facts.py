"""Run a JAX training script for real on a CPU and count what it does, without Leadline.

Usage: python jax_facts.py OUT.json STEPS [-m] TARGET ARGUMENTS. It ends the script after STEPS calls of the function
that takes gradients, and needs jax and nothing else. Products and convolutions are counted in the jaxprs of the
functions that the script calls: forward by their definition, and the gradients of a convolution as the forward
convolution of the same sizes.
"""

import functools
import json
import math
import os
import runpy
import sys

import jax

CALLS, WEIGHTS, SEEN = [], {}, []
JIT = jax.jit


class EnoughSteps(BaseException):
    """Ends the script."""


class Counted:
    """A jitted function that counts its calls from outside of a trace."""

    def __init__(self, function, transformed, steps):
        functools.update_wrapper(self, function)
        self.transformed, self.steps = transformed, steps

    def __call__(self, *args, **kwargs):
        """Count and run the function."""
        leaves = jax.tree.leaves((args, kwargs))
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            note_call(self.transformed, args, kwargs, self.steps)
        return self.transformed(*args, **kwargs)

    def __get__(self, owner, kind=None):
        """Bind as a method."""
        return self if owner is None else functools.partial(self, owner)

    def __getattr__(self, name):
        """Return what jax's own object has."""
        return getattr(self.__dict__["transformed"], name)


def main(out, steps, *command):
    """Run the command, and write what was counted."""
    is_module = command[0] == "-m"
    target, *argv = command[is_module:]
    sys.argv = [target, *argv]
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(target))
    replace(int(steps))
    error = ""
    try:
        (runpy.run_module if is_module else runpy.run_path)(target, run_name="__main__")
    except EnoughSteps:
        pass
    except SystemExit as stop:
        error = str(stop.code or "")
    if any(in_loop for _, _, in_loop in CALLS):
        CALLS[:] = [call for call in CALLS if call[0]]
    steps_at = [number for number, (trains, _, _) in enumerate(CALLS) if trains]
    ends = [*steps_at[1:], *([len(CALLS)] if not steps_at[1:] else [])]
    flops = [sum(count for _, count, _ in CALLS[begin:end]) for begin, end in zip(steps_at, ends, strict=False)]
    sizes = [math.prod(shape) for shapes in WEIGHTS for shape in shapes]
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"steps": len(steps_at), "parameters": sum(sizes), "frozen": 0, "flops": flops, "error": error}, file)
    os._exit(0)  # threads need not end in order


def replace(steps):
    """Let jax's transformations note calls and gradients."""
    for name in ("jit", "pmap"):
        setattr(jax, name, counted(getattr(jax, name), steps))
    for name in ("grad", "value_and_grad"):
        setattr(jax, name, watched(getattr(jax, name)))
    loop = jax.lax.fori_loop

    def fori_loop(lower, upper, body_fun, init_val, **settings):
        def run(init_val):
            return loop(lower, upper, body_fun, init_val, **settings)

        if all(not isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((lower, upper, init_val))):
            note_call(JIT(run), (init_val,), {}, steps)
        return run(init_val)

    jax.lax.fori_loop = fori_loop


def counted(original, steps):
    """Return a transformation whose functions are counted."""

    @functools.wraps(original)
    def transform(fun=None, *args, **kwargs):
        if fun is None:
            return functools.partial(transform, *args, **kwargs)
        return Counted(fun, original(fun, *args, **kwargs), steps)

    return transform


def watched(original):
    """Return a gradient transformation that notes the shapes of what it differentiates."""

    @functools.wraps(original)
    def transform(fun, argnums=0, *args, **kwargs):
        function = original(fun, argnums, *args, **kwargs)

        @functools.wraps(function)
        def call(*inputs, **named):
            places = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
            leaves = jax.tree.leaves([inputs[place] for place in places])
            SEEN.append(tuple(tuple(leaf.shape) for leaf in leaves if hasattr(leaf, "shape")))
            return function(*inputs, **named)

        return call

    return transform


def note_call(function, args, kwargs, steps):
    """Note the operations of a call, and end the script after enough steps."""
    SEEN.clear()
    trace = function.trace(*args, **kwargs).jaxpr if hasattr(function, "trace") else jax.make_jaxpr(function)(*args)
    body = step_body(trace.jaxpr) if is_training(trace.jaxpr) else trace.jaxpr
    if is_training(trace.jaxpr):
        WEIGHTS.update(dict.fromkeys(SEEN))
    CALLS.append((is_training(trace.jaxpr), operations(body, forward_sizes(body)), body is not trace.jaxpr))
    # A loop within the function runs all its steps, of which one is counted.
    if steps > 0 and (body is not trace.jaxpr or sum(trains for trains, _, _ in CALLS) > steps):
        raise EnoughSteps


def inner(equation):
    """Return the jaxprs that an equation calls."""
    params = list(equation.params.values())
    members = [member for value in params for member in (value if isinstance(value, (tuple, list)) else (value,))]
    return [jaxpr for jaxpr in (getattr(member, "jaxpr", member) for member in members) if hasattr(jaxpr, "eqns")]


def is_gradient(equation):
    """Return whether an equation belongs to a backward pass."""
    return "transpose(" in str(equation.source_info.name_stack)


def is_training(jaxpr):
    """Return whether a jaxpr holds a backward pass."""
    return any(is_gradient(equation) or any(map(is_training, inner(equation))) for equation in jaxpr.eqns)


def step_body(jaxpr):
    """Return the body of the innermost loop that holds the whole backward pass, or the jaxpr without one."""
    for equation in jaxpr.eqns:
        if "jvp(" in str(equation.source_info.name_stack):
            continue
        for part in inner(equation):
            if is_training(part):
                return step_body(part) if equation.primitive.name in ("scan", "while", "jit", "pjit") else jaxpr
    return jaxpr


def sizes(equation):
    """Return the sizes of a convolution's image, filter and result in order of size."""
    return tuple(sorted(value.aval.size for value in (*equation.invars, *equation.outvars)))


def forward_sizes(jaxpr):
    """Return the operations of forward convolutions by their sizes."""
    found = {}
    for equation in jaxpr.eqns:
        for part in inner(equation):
            found.update(forward_sizes(part))
        if equation.primitive.name == "conv_general_dilated" and not is_gradient(equation):
            image, kernel = (value.aval for value in equation.invars)
            numbers = equation.params["dimension_numbers"]
            taps = kernel.size / kernel.shape[numbers.rhs_spec[0]]
            is_transposed = math.prod(equation.params["lhs_dilation"]) > 1
            other = kernel.size / kernel.shape[numbers.rhs_spec[1]]
            count = image.size * other if is_transposed else equation.outvars[0].aval.size * taps
            found.setdefault(sizes(equation), 2 * count)
    return found


def operations(jaxpr, forward):
    """Return the operations of products and convolutions."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), (batch, _) = params["dimension_numbers"]
            left, right = (value.aval for value in equation.invars)
            shared = math.prod(left.shape[axis] for axis in batch)
            depth = math.prod(left.shape[axis] for axis in contracted)
            total += 2 * left.size * right.size / max(1, shared * depth)
        elif name == "conv_general_dilated":
            # A filter's gradient for each image by itself is larger than the filter: two of the sizes are the same.
            total += max((len({*key} & {*sizes(equation)}), count) for key, count in forward.items())[1]
        else:
            counts = [operations(part, forward) for part in inner(equation)]
            total += max(counts, default=0) if name == "cond" else sum(counts) * params.get("length", 1)
    return int(total)


if __name__ == "__main__":
    main(*sys.argv[1:])

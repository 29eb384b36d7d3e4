"""Say in which stage of a step each node runs, by the names that JAX gives to what differentiation makes."""

import re

from leadline.core.graph import Stage
from leadline.graphs.hlo.flatten import FlatProgram, HloNode

PRODUCTS = frozenset({"dot", "convolution", "custom_call"})
"""What the weights of a model reach, and the state of an optimizer never."""

_WRAPPED = re.compile(r"(?:jvp|transpose|vmap|checkpoint|remat\d*|rematted_computation)\(([^()]*)\)")


def node_stages(program: FlatProgram) -> list[Stage]:
    """Return the stage of each node.

    ``transpose(…)`` in a scope is backward. In a step that gives arguments back, what leads to no matrix product or
    convolution and updates such an argument is the optimizer. A text without scopes does not tell forward from
    backward, and both are called forward.
    """
    late = _updating(program)
    stages: list[Stage] = []
    for place, node in enumerate(program.nodes):
        if "transpose(" in node.scope:
            stages.append(Stage.BACKWARD)
        elif place in late and "jvp(" not in node.scope:
            stages.append(Stage.OPTIMIZER)
        else:
            stages.append(Stage.FORWARD)
    return stages


def updated_arguments(program: FlatProgram) -> dict[int, int]:
    """Return the arguments that are given back, and by which result: by the text's aliases, else by type, in order."""
    if program.aliases:
        return {
            program.arguments[argument]: program.outputs[result] for result, argument in program.aliases.items()
            if argument < len(program.arguments) and result < len(program.outputs)
        }  # fmt: skip
    found: dict[int, int] = {}
    free = list(program.arguments)
    for result in program.outputs:
        spec = program.values[result]
        match = next((one for one in free if program.values[one] == spec and spec.shape), None)
        if match is not None:
            free.remove(match)
            found[match] = result
    return found


def is_product(node: HloNode) -> bool:
    """Whether a node is a product, or a fusion around one."""
    if node.inner is not None:
        return any(is_product(one) for one in node.inner.nodes)
    return node.opcode in PRODUCTS


def reaching_products(program: FlatProgram) -> set[int]:
    """Return the values that lead to a product, a library call, or a result that updates no argument (a loss)."""
    found = set(program.outputs) - set(updated_arguments(program).values())
    for node in reversed(program.nodes):
        if is_product(node) or found.intersection(node.outputs):
            found.update(node.inputs)
    return found


def _updating(program: FlatProgram) -> set[int]:
    """Return the nodes that make the new value of a given-back argument from its old one, and lead nowhere else."""
    updated = updated_arguments(program)
    leading = reaching_products(program)
    late = {argument for argument in updated if argument not in leading}
    old, new = set(updated), set(updated.values())
    wanted = set(new)
    towards: set[int] = set()
    for place in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[place]
        if wanted.intersection(node.outputs) and not leading.intersection(node.outputs) and not is_product(node):
            towards.add(place)
            wanted.update(node.inputs)
    found: set[int] = set()
    touched = old | late
    for place in sorted(towards):
        node = program.nodes[place]
        if touched.intersection(node.inputs):
            found.add(place)
            touched.update(node.outputs)
    return found


def plain_scope(scope: str) -> str:
    """Return a scope without its last word (the primitive) and without what differentiation wrapped around it."""
    path = scope.rpartition("/")[0]
    while (bare := _WRAPPED.sub(r"\1", path)) != path:
        path = bare
    return "/".join(word for word in path.split("/") if word)

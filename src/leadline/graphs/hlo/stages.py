"""Find the stage of a step that each node belongs to, by the scopes that JAX writes for differentiation."""

import re

from leadline.core.graph import Stage
from leadline.graphs.hlo.flatten import FlatProgram, HloNode

PRODUCTS = frozenset({"dot", "convolution", "custom_call"})
"""Opcodes that use the weights of a model, but never the state of an optimizer."""

_DIFFERENTIATED = re.compile(r"(?:jvp|transpose|vmap|checkpoint|remat\d*|rematted_computation)\(([^()]*)\)")


def node_stages(program: FlatProgram) -> list[Stage]:
    """Return the stage of each node.

    ``transpose(…)`` in a scope means backward. In a step that returns updated arguments, nodes that lead to no product
    and update such an argument are the optimizer's. A text without scopes does not separate forward from backward, and
    both are called forward.
    """
    optimizer_nodes = _optimizer_nodes(program)
    stages: list[Stage] = []
    for position, node in enumerate(program.nodes):
        if "transpose(" in node.scope:
            stages.append(Stage.BACKWARD)
        elif position in optimizer_nodes and "jvp(" not in node.scope:
            stages.append(Stage.OPTIMIZER)
        else:
            stages.append(Stage.FORWARD)
    return stages


def updated_arguments(program: FlatProgram) -> dict[int, int]:
    """Return the updated arguments and their results: by the text's aliases, else by type, in order."""
    if program.aliases:
        return {
            program.arguments[argument]: program.outputs[result] for result, argument in program.aliases.items()
            if argument < len(program.arguments) and result < len(program.outputs)
        }  # fmt: skip
    updated: dict[int, int] = {}
    free = list(program.arguments)
    for result in program.outputs:
        spec = program.values[result]
        match = next((candidate for candidate in free if program.values[candidate] == spec and spec.shape), None)
        if match is not None:
            free.remove(match)
            updated[match] = result
    return updated


def is_product(node: HloNode) -> bool:
    """Return whether a node is a product, or a fusion that contains one."""
    if node.inner is not None:
        return any(is_product(inner_node) for inner_node in node.inner.nodes)
    return node.opcode in PRODUCTS


def reaching_products(program: FlatProgram) -> set[int]:
    """Return the values that lead to a product, a library call, or a result that updates no argument (a loss)."""
    values = set(program.outputs) - set(updated_arguments(program).values())
    for node in reversed(program.nodes):
        if is_product(node) or values.intersection(node.outputs):
            values.update(node.inputs)
    return values


def _optimizer_nodes(program: FlatProgram) -> set[int]:
    """Return the nodes that compute the new value of an updated argument from its old one, and nothing else."""
    updated = updated_arguments(program)
    leading = reaching_products(program)
    direct = {argument for argument in updated if argument not in leading}
    old, new = set(updated), set(updated.values())
    needed = set(new)
    towards: set[int] = set()
    for position in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[position]
        if needed.intersection(node.outputs) and not leading.intersection(node.outputs) and not is_product(node):
            towards.add(position)
            needed.update(node.inputs)
    nodes: set[int] = set()
    touched = old | direct
    for position in sorted(towards):
        node = program.nodes[position]
        if touched.intersection(node.inputs):
            nodes.add(position)
            touched.update(node.outputs)
    return nodes


def plain_scope(scope: str) -> str:
    """Return a scope without its last word (the primitive) and without the wrappers of differentiation."""
    path = scope.rpartition("/")[0]
    while (bare := _DIFFERENTIATED.sub(r"\1", path)) != path:
        path = bare
    return "/".join(word for word in path.split("/") if word)

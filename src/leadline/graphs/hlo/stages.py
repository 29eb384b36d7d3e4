"""Find the stage of a step that each node belongs to, by the scopes that JAX writes for differentiation."""

from leadline.core.graph import Stage
from leadline.graphs.hlo import OPCODES
from leadline.graphs.hlo.flatten import FlatProgram, HloNode


def node_stages(program: FlatProgram) -> list[Stage]:
    """Return the stage of each node.

    ``transpose(…)`` in a scope means backward. In a step that returns updated arguments, nodes that lead to no product
    and update such an argument are the optimizer's. A text without scopes does not separate forward from backward, and
    both are called forward.
    """
    updates = _optimizer_nodes(program)

    def stage(position: int, scope: str) -> Stage:
        if "transpose(" in scope:
            return Stage.BACKWARD
        return Stage.OPTIMIZER if position in updates and "jvp(" not in scope else Stage.FORWARD

    return [stage(position, node.scope) for position, node in enumerate(program.nodes)]


def updated_arguments(program: FlatProgram) -> dict[int, int]:
    """Return the updated arguments and their results: by the text's aliases, else by type, in order."""
    if program.aliases:
        return dict(program.donated())
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
    return node.opcode in OPCODES["products"]


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
    needed = set(updated.values())
    towards: list[int] = []
    for position in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[position]
        if needed.intersection(node.outputs) and not leading.intersection(node.outputs) and not is_product(node):
            towards.append(position)
            needed.update(node.inputs)
    nodes: set[int] = set()
    touched = set(updated)
    for position in reversed(towards):
        node = program.nodes[position]
        if touched.intersection(node.inputs):
            nodes.add(position)
            touched.update(node.outputs)
    return nodes

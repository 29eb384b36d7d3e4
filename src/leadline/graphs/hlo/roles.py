"""Tell weights, optimizer state and inputs apart among a module's arguments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from leadline.core.graph import Stage, StorageCategory
from leadline.graphs.hlo.costs import ALIASES
from leadline.graphs.hlo.flatten import Program
from leadline.graphs.hlo.module import elements, size_bytes
from leadline.graphs.hlo.stages import reaching_products, updated_arguments

_MEMBER = re.compile(r"\['|\.\w")
"""What is taken from a collection by its name, as in ``params['w']`` or ``model.kernel``."""

PLAIN = ALIASES | {"transpose", "convert", "slice", "broadcast", "copy", "reverse", "dynamic_slice"}
"""What shows an argument in another form."""

POINTWISE = frozenset({"subtract", "multiply", "divide", "add", "negate"})
"""What prepares an input with constants."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What each argument's memory holds; ``parameters`` counts the weights."""

    categories: dict[int, StorageCategory] = field(default_factory=dict)
    parameters: int = 0
    parameter_bytes: int = 0


def roles_of(program: Program, stages: Sequence[Stage]) -> Roles:
    """Return the role of each argument.

    Weights come in collections: floating-point arguments are weights if the text calls them members of one
    (``params['w']``). Where it names none, they are but for those that plainly stand on the left of a matrix product or
    convolution. In a training step an argument that is given back is a weight if it leads to a product or to the loss,
    else state of the optimizer; one that is not given back is an input. This is a reading of the dataflow: the text
    does not say.
    """
    updated = updated_arguments(program)
    fed = _fed(program)
    leading = reaching_products(program)
    trains = Stage.OPTIMIZER in stages
    members = {
        value for value, label in zip(program.arguments, program.labels, strict=False) if _MEMBER.search(label)
    }  # fmt: skip
    categories: dict[int, StorageCategory] = {}
    for value in program.arguments:
        spec = program.values[value]
        is_float = "float" in spec.dtype
        if trains and value in updated:
            weight = is_float and value in leading
            categories[value] = StorageCategory.PARAMETER if weight else StorageCategory.OPTIMIZER_STATE
        elif trains or not is_float or (value not in members if members else value in fed):
            categories[value] = StorageCategory.INPUT
        else:
            categories[value] = StorageCategory.PARAMETER
    weights = [one for one, category in categories.items() if category is StorageCategory.PARAMETER]
    weights += [
        node.outputs[0] for node in program.nodes
        if node.opcode == "constant" and "value" not in node.attributes and _is_matrix(program, node.outputs[0])
    ]  # fmt: skip
    return Roles(
        categories,
        sum(elements(program.values[one]) for one in weights),
        sum(size_bytes(program.values[one]) for one in weights),
    )


def _is_matrix(program: Program, value: int) -> bool:
    spec = program.values[value]
    return len(spec.shape) > 1 and "float" in spec.dtype


def _fed(program: Program) -> set[int]:
    """Return the arguments that reach the left of a product, at most scaled and shifted by constants."""
    origin = {value: value for value in program.arguments}
    found: set[int] = set()
    for node in program.nodes:
        if node.opcode in ("dot", "convolution") and node.inputs[0] in origin:
            found.add(origin[node.inputs[0]])
        if not node.outputs:
            continue
        known = [origin[value] for value in node.inputs if value in origin]
        prepares = node.opcode in POINTWISE and len(known) == 1 and _with_constant(program, node.inputs)
        plain = node.opcode in PLAIN or prepares
        if plain and known and node.inputs[0] in origin:
            origin[node.outputs[0]] = origin[node.inputs[0]]
    return found


def _with_constant(program: Program, inputs: Sequence[int]) -> bool:
    """Whether one of two operands is a constant, as it stands or spread."""
    for value in inputs:
        maker = program.makers[value]
        while maker >= 0 and program.nodes[maker].opcode in ("broadcast", "convert", "reshape"):
            maker = program.makers[program.nodes[maker].inputs[0]]
        if maker >= 0 and program.nodes[maker].opcode == "constant":
            return True
    return False

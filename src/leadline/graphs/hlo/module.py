"""A parsed module: computations of instructions, with HLO's names for either text format."""

import re
import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from leadline.core.errors import InvalidInput
from leadline.core.frozen import Frozen
from leadline.core.graph import TensorSpec

OPCODE_TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "opcodes.toml").read_text(encoding="utf-8"))
OPCODES = {name: frozenset(opcodes) for name, opcodes in OPCODE_TABLE.items() if isinstance(opcodes, list)}
"""Sets of opcodes, and of targets of custom calls, by what they do."""

Attribute = int | float | str | tuple[int, ...]
"""A number, a word, or a list of numbers (dimensions, sizes)."""

DTYPES: dict[str, str] = OPCODE_TABLE["dtypes"]
HLO_NAMES: dict[str, str] = OPCODE_TABLE["stablehlo"]


class WithAttributes:
    """An object with named attributes that can be read as numbers."""

    __slots__ = ()
    attributes: dict[str, Attribute]

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of numbers, or () if it is absent."""
        value = self.attributes.get(name, ())
        return value if isinstance(value, tuple) else ()

    def number(self, name: str, default: int = 1) -> int:
        """Return an attribute that is one whole number."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default


class Instruction(Frozen, WithAttributes):
    """One instruction of a computation.

    Attributes:
        name: Unique in its computation. Result ``i`` of several is read as ``name#i``.
        opcode: HLO's name with underscores, such as ``dot``, ``broadcast`` or ``reduce_window``.
        operands: Names of its operands, in order.
        results: Shapes and dtypes of its results.
        nested: HLO counts the results as one tuple.
        called: Names of the computations it runs. A ``while`` has its condition before its body.
        attributes: Other properties that decide its size, normalized by the parsers.
        scope: Place in the user's program, such as ``jit(step)/transpose(jvp(Block_0))/mul``, or "" if unknown.
    """

    name: str
    opcode: str
    operands: tuple[str, ...]
    results: tuple[TensorSpec, ...]
    called: tuple[str, ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)
    scope: str = ""
    nested: bool = False


class Computation(Struct):
    """A function or region: its parameters and instructions in order, and the names it returns."""

    name: str
    parameters: list[tuple[str, TensorSpec]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    returned: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the parameters in the user's program, if the text has them."""


class Module(Struct):
    """All computations of a program."""

    entry: str  # name of the computation that is run
    computations: dict[str, Computation]
    aliases: dict[int, int] = field(default_factory=dict)  # parameter whose memory each result takes
    is_scheduled: bool = False  # a compiler has fused and ordered the instructions already
    dialect: str = "stablehlo"
    devices: int = 1  # devices that run the module together


def torch_dtype(word: str, where: str) -> str:
    """Return PyTorch's name of an element type.

    Raises:
        InvalidInput: The type is unknown.
    """
    folded = word.lower()
    if folded in DTYPES:
        return DTYPES[folded]
    signless = folded.removeprefix("u") if folded.startswith("ui") else "i" + folded[1:]
    if folded[:1] in ("u", "s") and signless in DTYPES:
        return DTYPES[signless]
    if folded.startswith(("f8e5", "f8e3")):
        return "float8_e5m2"
    if folded.startswith(("f8", "f4", "f6")):
        return "float8_e4m3fn"
    raise InvalidInput(f"{where}: the element type {word!r} is unknown: write the module with standard types")


def numbers_in(text: str) -> tuple[int, ...]:
    """Return the whole numbers in a text."""
    return tuple(int(word) for word in re.findall(r"-?\d+", text))

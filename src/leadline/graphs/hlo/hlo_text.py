"""Parse HLO text, as XLA dumps it and ``.as_text()`` of a compiled module writes it."""

import math
import re
from collections.abc import Iterator

from leadline.core.errors import InvalidInput, excerpt
from leadline.core.graph import TensorSpec
from leadline.graphs.hlo.module import Attribute, Computation, Instruction, Module, numbers_in, torch_dtype

_COMMENT = re.compile(r"/\*[^*]*\*/")
_HEADER = re.compile(r"^\s*(?P<entry>ENTRY\s+)?%?(?P<name>[\w.\-]+)\s*(?=[({])")
_SIGNATURE, _OPENS = re.compile(r"\)\s*->"), re.compile(r"\{\s*(?:/[^{]*)?$")
"""The arrow of a computation's header, and the brace at its end."""

_RESULT = re.compile(r"^\s*(?P<root>ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*")
_SHAPE = re.compile(r"\b(?P<dtype>[a-z]\w*)\[(?P<dims>[^\[\]]*)\]")
_LAYOUT = re.compile(r"\b[a-z]\w*\[[^\[\]]*\](\{[^{}]*\})?")
_ON_CHIP = re.compile(r"S\(\d+\)")
"""A memory space in a layout, which is only written for memory other than the device's main memory."""

_ALIAS = re.compile(r"\{(\d*)\}: \((\d+),")
_SCOPE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRIPS = re.compile(r'"?known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)')
_NAME = re.compile(r"%?([\w.\-]+)")
_LISTS = {
    "lhs_contracting_dims": "lhs_contracting", "rhs_contracting_dims": "rhs_contracting",
    "lhs_batch_dims": "lhs_batch", "rhs_batch_dims": "rhs_batch", "dimensions": "dimensions",
    "slice_sizes": "slice_sizes", "dynamic_slice_sizes": "slice_sizes",
}  # fmt: skip
_WORDS = {
    "direction": "direction", "dim_labels": "labels", "custom_call_target": "target", "backend_config": "config",
}  # fmt: skip
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_MARK = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[(\[{)\]},]')
"""A quoted text, which may have no end, a bracket, or a comma."""


def parse_hlo(text: str, source_name: str) -> Module:
    """Return the module in HLO text. ``source_name`` names the text in errors.

    Raises:
        InvalidInput: The text is no HLO, or a line cannot be read (with its number).
    """
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry, head = "", ""
    for number, text_line in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", text_line) if "/*" in text_line else text_line
        if line.startswith("HloModule"):
            head = line
        elif current is None:
            header = _header(line)
            if header and head:
                current = computations[header["name"]] = Computation(header["name"])
                entry = header["name"] if header["entry"] else entry
        elif line.strip() == "}" or line.startswith("}"):
            current = None
        elif line.strip():
            where = f"{source_name}:{number}"
            try:
                _read_line(line, current, where)
            except (LookupError, ValueError) as error:
                raise InvalidInput(_not_an_instruction(line, where)) from error
    if not head or not entry:
        missing = "ENTRY" if head else "HloModule"
        raise InvalidInput(f"{source_name} is not HLO text: it has no {missing} line; write it with compiled.as_text()")
    for computation in computations.values():
        parameters = [line for line in computation.instructions if line.opcode == "parameter"]
        parameters.sort(key=lambda line: line.number("index", 0))
        computation.parameters = [
            (line.name, line.results[0] if line.results else TensorSpec((), "token")) for line in parameters
        ]
        computation.labels = tuple(line.scope for line in parameters)
    devices = math.prod(map(int, re.findall(r"(?:num_partitions|replica_count)=(\d+)", head)))
    aliases = _ALIAS.findall(head.partition("input_output_alias={")[2])
    return Module(
        entry, computations, {int(result or 0): int(argument) for result, argument in aliases},
        "is_scheduled=true" in head, "hlo", devices,
    )  # fmt: skip


def _header(line: str) -> re.Match[str] | None:
    """Return the match of a line that opens a computation: ``name {`` or ``ENTRY %name (…) -> … {``."""
    match = _HEADER.match(line)
    if match is None or not _OPENS.search(line):
        return None
    return match if line[match.end()] == "{" or _SIGNATURE.search(line) else None


def _not_an_instruction(line: str, where: str) -> str:
    return f"{where}: {excerpt(line.strip())!r} is not an HLO instruction: export the whole text again"


def _read_line(line: str, computation: Computation, where: str) -> None:
    match = _RESULT.match(line)
    if match is None:
        raise InvalidInput(_not_an_instruction(line, where))
    place = match.end()
    end = _closing(line, place) + 1 if line[place] == "(" else line.index(" ", place)
    shape = line[place:end]
    place = end + 1
    opening = line.find("(", place)
    if opening < 0:
        raise InvalidInput(f"{where}: {excerpt(line.strip())!r} ends before its operands: export the whole text again")
    closing = _closing(line, opening)
    opcode = line[place:opening].strip().replace("-", "_")
    inside = line[opening + 1 : closing]
    text = line[closing + 1 :]
    attributes, called = _attributes(text)
    if near := tuple(index for index, layout in enumerate(_LAYOUT.findall(shape)) if _ON_CHIP.search(layout)):
        attributes["near"] = near
    operands: tuple[str, ...] = ()
    if opcode in ("constant", "parameter"):
        _add_literal(opcode, inside, attributes)
    elif opcode != "iota":
        operands = tuple(part.split()[-1].lstrip("%") for part in _split(inside) if part.strip())
    results = tuple(
        TensorSpec(tuple(int(size.lstrip("<=")) for size in dims.split(",") if size), torch_dtype(dtype, where))
        for dtype, dims in _SHAPE.findall(shape)
    )
    scope = _SCOPE.search(text)
    instruction = Instruction(
        match["name"], opcode, operands, results, called, attributes,
        scope[1].replace("\\'", "'") if scope else "", shape.startswith("("),
    )  # fmt: skip
    computation.instructions.append(instruction)
    if match["root"]:
        computation.returned = (instruction.name,)


def _attributes(text: str) -> tuple[dict[str, Attribute], tuple[str, ...]]:
    """Return the attributes of a line, and the names of the computations that it runs."""
    attributes: dict[str, Attribute] = {}
    called: list[str] = []
    for part in _split(text):
        key, equals, value = part.strip().partition("=")
        if key == "condition":
            called.insert(0, value.lstrip("%"))
        elif key in ("calls", "to_apply", "body", "true_computation", "false_computation"):
            called.append(value.lstrip("%"))
        elif key in ("branch_computations", "called_computations"):
            called.extend(_NAME.findall(value))
        elif equals:
            _add_attribute(key, value, attributes)
    return attributes, tuple(called)


def _add_attribute(key: str, value: str, attributes: dict[str, Attribute]) -> None:
    """Add one attribute under the name that both parsers share."""
    if key in _LISTS:
        attributes[_LISTS[key]] = numbers_in(value)
    elif key in ("index", "feature_group_count", "batch_group_count"):
        attributes[key] = int(value)
    elif key in _WORDS:
        attributes[_WORDS[key]] = value.strip('"')
    elif key == "window":
        _add_window(value, attributes)
    elif key == "operand_precision":
        attributes["precise"] = int("high" in value)
    elif key == "replica_groups":
        attributes["ranks"] = _ranks(value)
    if key == "backend_config" and (trips := _TRIPS.search(value)):
        attributes["trips"] = int(trips[1])


def _add_window(value: str, attributes: dict[str, Attribute]) -> None:
    for word in value.strip("{}").split():
        name, _, sizes = word.partition("=")
        if name in ("size", "stride", "lhs_dilate", "rhs_dilate", "pad"):
            attributes[name] = tuple(int(size.partition("_")[0]) for size in sizes.split("x"))


def _ranks(value: str) -> int:
    """Return the size of the first group: ``{{0,1},{2,3}}`` or ``[2,2]<=[4]``."""
    if value.startswith("["):
        return numbers_in(value.partition("]")[0])[-1]
    return len(numbers_in(value.lstrip("{").partition("}")[0]))


def _add_literal(opcode: str, inside: str, attributes: dict[str, Attribute]) -> None:
    word = inside.strip()
    if opcode == "parameter":
        attributes["index"] = int(word)
    elif re.fullmatch(r"-?\d+", word):
        attributes["value"] = int(word)
    elif word in ("true", "false"):
        attributes["value"] = int(word == "true")


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets and quotes."""
    depth = start = 0
    for mark in _MARK.finditer(text):
        depth += (mark[0] in _OPENING) - (mark[0] in _CLOSING)
        if mark[0] == "," and depth == 0:
            yield text[start : mark.start()]
            start = mark.end()
    yield text[start:]


def _closing(text: str, opening: int) -> int:
    """Return the position of the parenthesis that closes the one at ``opening``, or the end of the text."""
    depth = 0
    for mark in _MARK.finditer(text, opening):
        depth += (mark[0] == "(") - (mark[0] == ")")
        if depth == 0:
            return mark.start()
    return len(text) - 1

"""Parse HLO text: what XLA dumps, and what ``.as_text()`` of a compiled module writes."""

import re
from collections.abc import Iterator

from leadline.core.errors import InvalidInput
from leadline.core.graph import TensorSpec
from leadline.graphs.hlo.module import Attribute, Computation, Instruction, Module, torch_dtype

_COMMENT = re.compile(r"/\*[^*]*\*/")
_HEADER = re.compile(r"^\s*(?P<entry>ENTRY\s+)?%?(?P<name>[\w.\-]+)\s*(?:\(.*\)\s*->.*)?\{\s*(?:/.*)?$")
_RESULT = re.compile(r"^\s*(?P<root>ROOT\s+)?%?(?P<name>[\w.\-]+)\s*=\s*")
_SHAPE = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[^\]]*)\]")
_LAYOUT = re.compile(r"[a-z]\w*\[[^\]]*\](\{[^}]*\})?")
_NEAR = re.compile(r"S\(\d+\)")
"""A memory space in a layout: anything but the device's main memory, which is not written."""

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
_OPENING, _CLOSING = "([{", ")]}"


def parse_hlo(text: str, what: str) -> Module:
    """Return the module that HLO text holds; ``what`` names the text in errors.

    Raises:
        InvalidInput: the text is no HLO, or a line cannot be read (with its number).
    """
    computations: dict[str, Computation] = {}
    current: Computation | None = None
    entry, head = "", ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", raw) if "/*" in raw else raw
        if line.startswith("HloModule"):
            head = line
        elif current is None:
            header = _HEADER.match(line)
            if header and head:
                current = computations[header["name"]] = Computation(header["name"])
                entry = header["name"] if header["entry"] else entry
        elif line.strip() == "}" or line.startswith("}"):
            current = None
        elif line.strip():
            _read_line(line, current, f"{what}:{number}")
    if not head or not entry:
        raise InvalidInput(f"{what} is not HLO text: it has no {'ENTRY' if head else 'HloModule'} line; write it with "
                           "compiled.as_text()")  # fmt: skip
    for one in computations.values():
        one.parameters.sort(key=lambda parameter: _order(one, parameter[0]))
        one.labels = tuple(_order_labels(one))
    devices = 1
    for count in re.findall(r"(?:num_partitions|replica_count)=(\d+)", head):
        devices *= int(count)
    return Module(entry, computations, _aliases(head), "is_scheduled=true" in head, "hlo", devices)


def _aliases(head: str) -> dict[int, int]:
    place = head.find("input_output_alias={")
    if place < 0:
        return {}
    return {int(result or 0): int(argument) for result, argument in _ALIAS.findall(head[place:])}


def _order(computation: Computation, name: str) -> int:
    return next(one.number("index", 0) for one in computation.instructions if one.name == name)


def _order_labels(computation: Computation) -> Iterator[str]:
    known = {one.name: one for one in computation.instructions if one.opcode == "parameter"}
    for name, _ in computation.parameters:
        yield known[name].scope


def _read_line(line: str, computation: Computation, where: str) -> None:
    match = _RESULT.match(line)
    if match is None:
        raise InvalidInput(f"{where}: {line.strip()[:60]!r} is not an HLO instruction: write the text again, whole")
    place = match.end()
    end = _closing(line, place) + 1 if line[place] == "(" else line.index(" ", place)
    shape = line[place:end]
    place = end + 1
    opening = line.find("(", place)
    if opening < 0:
        raise InvalidInput(f"{where}: {line.strip()[:60]!r} ends before its operands: write the text again, whole")
    closing = _closing(line, opening)
    opcode = line[place:opening].strip().replace("-", "_")
    inside = line[opening + 1 : closing]
    attributes = line[closing + 1 :]
    results = tuple(
        TensorSpec(tuple(int(size.lstrip("<=")) for size in dims.split(",") if size), torch_dtype(dtype, where))
        for dtype, dims in _SHAPE.findall(shape)
    )
    one = _instruction(match["name"], opcode, inside, attributes, results, shape.startswith("("))
    near = tuple(place for place, text in enumerate(_LAYOUT.findall(shape)) if _NEAR.search(text))
    if near:
        one.attributes["near"] = near
    if opcode == "parameter":
        computation.parameters.append((one.name, results[0] if results else TensorSpec((), "token")))
    computation.instructions.append(one)
    if match["root"] or not computation.returned:
        computation.returned = (one.name,) if match["root"] else ()


def _instruction(
    name: str, opcode: str, inside: str, text: str, results: tuple[TensorSpec, ...], nested: bool
) -> Instruction:
    found: dict[str, Attribute] = {}
    called: list[str] = []
    for key, value in _pairs(text):
        if key in ("calls", "to_apply", "condition", "body", "true_computation", "false_computation"):
            called.insert(0, value.lstrip("%")) if key == "condition" else called.append(value.lstrip("%"))
        elif key in ("branch_computations", "called_computations"):
            called.extend(_NAME.findall(value))
        else:
            _attribute(key, value, found)
    if opcode in ("constant", "parameter"):
        _literal(opcode, inside, found)
        operands: tuple[str, ...] = ()
    else:
        operands = tuple(part.split()[-1].lstrip("%") for part in _split(inside) if part.strip())
    if opcode == "iota":
        operands = ()
    scope = _SCOPE.search(text)
    return Instruction(
        name, opcode, operands, results, tuple(called), found, scope[1].replace("\\'", "'") if scope else "", nested
    )


def _attribute(key: str, value: str, found: dict[str, Attribute]) -> None:
    """Write one attribute in the words both parsers share."""
    if key in _LISTS:
        found[_LISTS[key]] = _numbers(value)
    elif key in ("index", "feature_group_count", "batch_group_count"):
        found[key] = int(value)
    elif key in _WORDS:
        found[_WORDS[key]] = value.strip('"')
    elif key == "window":
        _window(value, found)
    elif key == "operand_precision":
        found["precise"] = int("high" in value)
    elif key == "replica_groups":
        found["ranks"] = _ranks(value)
    if key == "backend_config" and (trips := _TRIPS.search(value)):
        found["trips"] = int(trips[1])


def _window(value: str, found: dict[str, Attribute]) -> None:
    for word in value.strip("{}").split():
        name, _, sizes = word.partition("=")
        if name in ("size", "stride", "lhs_dilate", "rhs_dilate", "pad"):
            found[name] = tuple(int(size.partition("_")[0]) for size in sizes.split("x"))


def _ranks(value: str) -> int:
    """Return the size of the first group: ``{{0,1},{2,3}}`` or ``[2,2]<=[4]``."""
    if value.startswith("["):
        return _numbers(value.partition("]")[0])[-1]
    return len(_numbers(value.lstrip("{").partition("}")[0]))


def _literal(opcode: str, inside: str, found: dict[str, Attribute]) -> None:
    word = inside.strip()
    if opcode == "parameter":
        found["index"] = int(word)
    elif re.fullmatch(r"-?\d+", word):
        found["value"] = int(word)
    elif word in ("true", "false"):
        found["value"] = int(word == "true")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"-?\d+", text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for part in _split(text):
        key, equals, value = part.strip().partition("=")
        if equals:
            yield key, value


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that stand in no bracket and no quotes."""
    if not any(sign in text for sign in '([{"'):
        yield from text.split(",")
        return
    depth, start, quoted, place = 0, 0, False, 0
    while place < len(text):
        sign = text[place]
        if quoted:
            if sign == "\\":
                place += 1
            quoted = sign != '"'
        elif sign == '"':
            quoted = True
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[start:place]
            start = place + 1
        place += 1
    yield text[start:]


def _closing(text: str, opening: int) -> int:
    """Return the place of the parenthesis that closes the one at ``opening``; the end of the text if none does."""
    depth = 0
    quoted = False
    for place in range(opening, len(text)):
        sign = text[place]
        if sign == '"' and text[place - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif sign == "(":
            depth += 1
        elif sign == ")":
            depth -= 1
            if depth == 0:
                return place
    return len(text) - 1

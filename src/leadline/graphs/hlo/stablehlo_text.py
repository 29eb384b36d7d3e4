"""Parse StableHLO text (MLIR), in the pretty form that JAX and other frameworks print, and in the generic form."""

import math
import re

from msgspec import Struct, field

from leadline.core.errors import InvalidInput, excerpt
from leadline.core.graph import TensorSpec
from leadline.graphs.hlo.module import HLO_NAMES, Attribute, Computation, Instruction, Module, numbers_in, torch_dtype

_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)([A-Za-z]\w*(?:<\w+>)?)[^<>]*>|!(?:stablehlo|mhlo)\.token|token")
_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_ALIAS = re.compile(r"^(#loc\w*) = loc\((.*)\)\s*$")
_OP = re.compile(
    r"^(?:(?P<result>%[\w$.\-]+)(?::(?P<count>\d+))?(?P<more>(?:, %[\w$.\-]+)*)\s*=\s*)?"
    r'"?(?P<op>[A-Za-z_][\w$.]*)"?(?P<rest>.*)$'
)
_SYMBOL = re.compile(r'@"?([\w$.\-]+)"?')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_QUOTED_OR_OPEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)')
"""Also matches a text without an end, so that a search does not try each of its quotes: that takes quadratic time."""
_RETURNS = ("return", "func.return", "stablehlo.return", "mhlo.return", "sdy.return")
_ALIASING = re.compile(r"tf\.aliasing_output = (\d+)")
_LIST = r"\[([^\[\]]*)\]"
_WINDOW = {
    "size": "window_dimensions", "stride": "window_strides", "lhs_dilate": "(?:lhs_dilation|base_dilations)",
    "rhs_dilate": "(?:rhs_dilation|window_dilations)",
}  # fmt: skip
_GROUPS = re.compile(r"replica_groups = dense<.*?> : tensor<(\d+)x(\d+)xi64>")
_LITERAL = re.compile(r"dense<(-?\d+|true|false)>")
_DIRECTION = re.compile(r"compare\S*\s+(\w\w),|comparison_direction (\w\w)>")


class _LineReader(Struct):
    """The lines of a module, and the position of the next one."""

    lines: list[str]
    source_name: str
    scopes: dict[str, str]
    computations: dict[str, Computation] = field(default_factory=dict)
    aliases: dict[int, int] = field(default_factory=dict)
    position: int = 0
    regions: int = 0

    def where(self) -> str:
        return f"{self.source_name}:{self.position + 1}"


def parse_stablehlo(text: str, source_name: str) -> Module:
    """Return the module in StableHLO text. ``source_name`` names the text in errors.

    Raises:
        InvalidInput: The text holds no function, a size is not fixed, or a line cannot be read (with its number).
    """
    lines = text.splitlines()
    texts = {match[1]: match[2] for line in lines if line.startswith("#loc") and (match := _ALIAS.match(line))}
    reader = _LineReader(lines, source_name, {name: _scope_of(text, texts) for name, text in texts.items()})
    while reader.position < len(lines):
        line = lines[reader.position].strip()
        if line.startswith(("func.func", '"func.func"')):
            _function(reader, line)
        else:
            reader.position += 1
    if not reader.computations:
        raise InvalidInput(
            f"{source_name} is not StableHLO text: it has no func.func; write it with jax.jit(f).lower(…).as_text()"
        )
    entry = "main" if "main" in reader.computations else next(iter(reader.computations))
    counts = re.findall(r"num_(?:partitions|replicas) = (\d+)", next((line for line in lines if "module" in line), ""))
    return Module(entry, reader.computations, reader.aliases, devices=math.prod(map(int, counts)))


def _scope_of(text: str, texts: dict[str, str], depth: int = 0) -> str:
    """Return the scope that a location names, or "" for a place in a file."""
    scope = _quoted_scope(text)
    if scope is not None:
        return scope
    alias = re.search(r"#loc\w*", text)
    return "" if alias is None or depth > 8 else _scope_of(texts.get(alias[0], ""), texts, depth + 1)


def _quoted_scope(text: str) -> str | None:
    """Return the scope in quotes, "" for a place in a file, or ``None`` without quotes."""
    quoted = _QUOTED.match(text)
    if quoted is None:
        return None
    return "" if re.match(r":\d+:\d+", text[quoted.end() :]) else quoted[0][1:-1].rstrip(":")


def _function(reader: _LineReader, line: str) -> None:
    """Read ``func.func public @main(%arg0: …) -> (…) {``, or its generic form, and its body.

    A declaration has no body.
    """
    generic = line.startswith('"')
    symbol = re.search(r'sym_name = "([^"]+)"', line) if generic else _SYMBOL.search(line)
    computation = Computation(symbol[1] if symbol else "main")
    if generic:
        arguments = re.findall(r"\{([^{}]*)\}", line.partition("arg_attrs = [")[2].partition("], ")[0])
    else:
        head = line.partition(") -> ")[0]
        _parameters(reader, head, computation)
        arguments = re.split(r"%[\w$.\-]+: ", head)[1:]
    if computation.name == "main" or (" public " in line and "main" not in reader.computations):
        for number, argument in enumerate(arguments):
            if result := _ALIASING.search(argument):
                reader.aliases[int(result[1])] = number
    reader.position += 1
    if generic or _split_location(line)[0].endswith("{"):
        reader.computations[computation.name] = computation
        _body(reader, computation)
        reader.position += 1


def _parameters(reader: _LineReader, text: str, computation: Computation) -> None:
    matches = list(re.finditer(r"(%[\w$.\-]+)(?: = %[\w$.\-#]+)?: ", text))
    labels = []
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(text)
        part = text[match.end() : end]
        specs = _types(part.partition(" loc(")[0].partition(" {")[0], reader.where())
        if specs:
            computation.parameters.append((match[1].lstrip("%"), specs[0]))
            labels.append(_location(part.partition(" loc(")[2].rpartition(")")[0], reader))
    computation.labels = tuple(labels)


def _location(inside: str, reader: _LineReader) -> str:
    """Return the scope that ``loc(…)`` names, or "" for a place in a file or nothing."""
    if alias := re.match(r"#loc\w*", inside):
        return reader.scopes.get(alias[0], "")
    return _quoted_scope(inside) or ""


def _body(reader: _LineReader, computation: Computation) -> None:
    """Read instructions up to the line that closes the region, which stays the next line."""
    while reader.position < len(reader.lines):
        line = reader.lines[reader.position].strip()
        if line.startswith("}"):
            return
        if line.startswith("^bb"):
            _parameters(reader, line, computation)
            reader.position += 1
        elif not line or line.startswith("//"):
            reader.position += 1
        else:
            _statement(reader, line, computation)
    raise InvalidInput(f"{reader.source_name} ends within a function: export the whole text again")


def _statement(reader: _LineReader, line: str, computation: Computation) -> None:
    text, inside = _split_location(line)
    match = _OP.match(text)
    if match is None:
        raise InvalidInput(
            f"{reader.where()}: {excerpt(line)!r} is no StableHLO operation: export the whole text again"
        )
    word, arguments = match["op"], match["rest"]
    where = reader.where()
    called, signature, head = _regions(reader, word, arguments)
    if reader.position < len(reader.lines) and signature is not arguments and not inside:
        inside = _split_location(reader.lines[reader.position - 1])[1]
    unquoted = _QUOTED_OR_OPEN.sub('""', head)
    operands = _VALUE.findall(unquoted.rpartition(" : ")[0] or unquoted)
    if word in _RETURNS:
        computation.returned = tuple(name.lstrip("%") for name in operands)
        return
    opcode = HLO_NAMES.get(word, HLO_NAMES.get(word.partition(".")[2], word.partition(".")[2] or word))
    if opcode in ("while", "reduce", "reduce_window") and re.search(r"\(%[\w$.\-]+ (=|init:) %", head):
        # ``%iterArg = %x`` is the operand x, and ``(%a init: %i), (%b init: %j)`` is a, b, i, j.
        if opcode == "while":
            state = [name.lstrip("%") for name in operands[::2]]
            parameters = list(zip(state, _types(signature.rpartition(" : ")[2], where), strict=True))
            for region in called:
                reader.computations[region].parameters = parameters
            operands = operands[1::2]
        else:
            operands = operands[::2] + operands[1::2]
    attributes: dict[str, Attribute] = _read_attributes(opcode, word, head)
    symbol = _SYMBOL.search(unquoted if opcode == "custom_call" else head)
    if opcode == "call" and symbol and not called:
        symbol = re.search(r'decomposition = @"?([\w$.\-]+)', head) or symbol
        called = [symbol[1]]
    elif opcode == "custom_call" and symbol:
        attributes["target"] = symbol[1]
    results = [name.strip().lstrip("%") for name in f"{match['result'] or ''}{match['more'] or ''}".split(",")]
    count = int(match["count"] or len(results))
    result_name = results[0] if len(results) == 1 else f"{results[0]}.all"
    computation.instructions.append(
        Instruction(
            result_name or f"none{reader.position}", opcode, tuple(name.lstrip("%") for name in operands),
            _result_types(signature, count, where) if result_name else (), tuple(called), attributes,
            _location(inside, reader), match["count"] is not None or len(results) > 1,
        )
    )  # fmt: skip
    for index, name in enumerate(results if len(results) > 1 else ()):
        specs = computation.instructions[-1 - index].results[index : index + 1]
        computation.instructions.append(
            Instruction(name, "get_tuple_element", (result_name,), specs, (), {"index": index})
        )


def _regions(reader: _LineReader, name: str, text: str) -> tuple[list[str], str, str]:
    """Read the regions after an operation's line. Return their names, the text with the types, and the line.

    Generic operations open with ``({`` and name their types after ``})``. A pretty ``while`` is followed by ``cond {``
    and ``} do {``, a pretty reduction with a body of its own by ``reducer(…) {``. The part of one device ends its own
    line with ``(%arg: …) {``.
    """
    reader.position += 1
    called: list[str] = []
    if text.endswith("({"):
        while True:
            called.append(_region(reader))
            closing = _split_location(reader.lines[reader.position].strip())[0]
            reader.position += 1
            if not closing.startswith("}, {"):
                return called, closing, text[:-2] + closing.lstrip("})").partition(" : ")[0]
    if text.endswith(") {"):
        heading = text.rindex(" (%") + 1
        called.append(_region(reader, heading=text[heading:], opened=True))
        reader.position += 1
        return called, _split_location(reader.lines[reader.position - 1].strip())[0], text[:heading]
    following = reader.lines[reader.position].strip() if reader.position < len(reader.lines) else ""
    if name.endswith(".while") and following.startswith("cond"):
        for _ in range(2):
            reader.position += 1
            called.append(_region(reader))
        reader.position += 1
    elif following.startswith("reducer("):
        called.append(_region(reader, heading=following))
        reader.position += 1
    elif "applies " in text:
        applied = re.search(r"applies (?:\w+\.)?(\w+)", text)
        called = [_applied_computation(reader, applied[1])] if applied else []
    return called, text, text


def _region(reader: _LineReader, heading: str = "", *, opened: bool = False) -> str:
    """Read a region whose parameters ``heading`` names. ``opened`` if the reader is past that line."""
    reader.regions += 1
    computation = Computation(f"region.{reader.regions}")
    reader.computations[computation.name] = computation
    if heading:
        _parameters(reader, heading.replace(") (", ", "), computation)
        reader.position += not opened
    _body(reader, computation)
    return computation.name


def _applied_computation(reader: _LineReader, opcode: str) -> str:
    """Return the computation of ``applies stablehlo.add``: that one operation on two scalars."""
    name = f"applied.{opcode}"
    if name not in reader.computations:
        scalar = TensorSpec((), "float32")
        reader.computations[name] = Computation(
            name, [("a", scalar), ("b", scalar)], [Instruction("c", opcode, ("a", "b"), (scalar,))], ("c",)
        )
    return name


def _split_location(line: str) -> tuple[str, str]:
    """Return the line without the location at its end, and the text of the location."""
    line = line.rstrip()
    start = line.rfind(" loc(")
    if start < 0 or not line.endswith(")"):
        return line, ""
    inside = line[start + 5 : -1]
    if inside.count("(") != inside.count(")"):  # a location within the line
        return line, ""
    return line[:start].rstrip(), inside


def _result_types(signature: str, count: int, where: str) -> tuple[TensorSpec, ...]:
    """Return the result types: those after the arrow, else the last ones."""
    after = signature.rpartition(" : ")[2]
    arrow = after.rpartition("->")
    return tuple(_types(arrow[2] if arrow[1] else after, where)[-count:])


def _types(text: str, where: str) -> list[TensorSpec]:
    specs = []
    for match in _TENSOR.finditer(text):
        if match[2] is None:
            specs.append(TensorSpec((), "token"))
            continue
        if "?" in match[1]:
            raise InvalidInput(f"{where}: {match[0]} has a size that is not fixed: lower the function with full shapes")
        shape = tuple(int(size) for size in match[1].split("x") if size)
        specs.append(TensorSpec(shape, torch_dtype(match[2], where)))
    return specs


def _read_attributes(opcode: str, name: str, line: str) -> dict[str, Attribute]:
    """Return the attributes of an operation under the names that the HLO parser uses too."""
    attributes: dict[str, Attribute] = {}
    if opcode in ("dot", "convolution"):
        attributes["precise"] = int("HIGH" in line)
    if opcode == "dot":
        _add_dot(name, line, attributes)
    elif opcode in ("convolution", "reduce_window", "select_and_scatter"):
        _add_convolution(line, attributes)
    elif opcode in ("reduce", "broadcast", "transpose", "concatenate", "reverse"):
        dims = re.search(r"(?:dimensions|dims|broadcast_dimensions|permutation) = (?:array<i64:?)?\[?([\d, ]*)", line)
        attributes["dimensions"] = numbers_in(dims[1]) if dims else ()
    elif opcode == "constant":
        literal = _LITERAL.search(line)
        if literal:
            attributes["value"] = int(literal[1] == "true") if literal[1] in ("true", "false") else int(literal[1])
    elif opcode == "compare":
        direction = re.match(r"\s*(\w\w),", line) or _DIRECTION.search(line)
        attributes["direction"] = next(word for word in direction.groups() if word) if direction else ""
    elif opcode == "get_tuple_element":
        index = re.search(r"\[(\d+)\]|index = (\d+)", line)
        attributes["index"] = int(index[1] or index[2]) if index else 0
    elif groups := _GROUPS.search(line):
        attributes["ranks"] = int(groups[2])
    return attributes


def _add_dot(name: str, line: str, attributes: dict[str, Attribute]) -> None:
    if name.endswith(".dot"):
        attributes["lhs_contracting"], attributes["rhs_contracting"] = (-1,), (0,)
        return
    for key, word in (("contracting", "contracting"), ("batch", "batching")):
        pretty = re.search(rf"{word}_dims = {_LIST} x {_LIST}", line)
        for number, side in enumerate(("lhs", "rhs"), 1):
            if match := re.search(rf"{side}_{word}_dimensions = {_LIST}", line):
                attributes[f"{side}_{key}"] = numbers_in(match[1])
            elif pretty:
                attributes[f"{side}_{key}"] = numbers_in(pretty[number])


def _add_convolution(line: str, attributes: dict[str, Attribute]) -> None:
    """Add the layout as HLO writes it (``b01f_01io->b01f``), the window and the groups."""
    if layout := re.search(rf"{_LIST}x{_LIST}->{_LIST}", line):
        lhs, rhs, out = (part.replace(" ", "").replace(",", "") for part in layout.groups())
        attributes["labels"] = f"{lhs}_{rhs}->{out}"
    for key in ("stride", "lhs_dilate", "rhs_dilate"):
        if match := re.search(rf"[{{ ,]{key} = {_LIST}", line):
            attributes[key] = numbers_in(match[1])
    for key, pattern in _WINDOW.items():
        if match := re.search(rf"{pattern} = (?:array<i64:?|dense<\[?)([\d, ]*)", line):
            attributes[key] = numbers_in(match[1])
    for key in ("feature_group_count", "batch_group_count"):
        if match := re.search(rf"{key} = (\d+)", line):
            attributes[key] = int(match[1])

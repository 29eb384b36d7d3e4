"""Read the attributes that decide an operation's size from its StableHLO line, pretty or generic."""

import re

from leadline.graphs.hlo.module import Attribute, numbers_in

_LIST = r"\[([^\[\]]*)\]"
_WINDOW = {
    "size": "window_dimensions", "stride": "window_strides", "lhs_dilate": "(?:lhs_dilation|base_dilations)",
    "rhs_dilate": "(?:rhs_dilation|window_dilations)",
}  # fmt: skip
_GROUPS = re.compile(r"replica_groups = dense<.*?> : tensor<(\d+)x(\d+)xi64>")
_LITERAL = re.compile(r"dense<(-?\d+|true|false)>")
_DIRECTION = re.compile(r"compare\S*\s+(\w\w),|comparison_direction (\w\w)>")


def read_attributes(opcode: str, name: str, line: str) -> dict[str, Attribute]:
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

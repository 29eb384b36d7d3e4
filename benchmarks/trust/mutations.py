"""Damage to the content of files: random bytes, and values that are wrong for the form of the file."""

import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]


class Form(StrEnum):
    """The form of a file's content, which decides the damage that reaches deep into its reader."""

    TEXT = "text"
    JSON = "json"
    JSON_LINES = "json lines"
    TOML = "toml"
    ARRAY = "npy"
    ZIP = "zip"
    BINARY = "binary"


NUMBERS = (
    "0", "-1", "1e308", "1e999", "-0", "NaN", "nan", "inf", "-Infinity", "3000000000", "9223372036854775808",
    "1" + "0" * 30, "9" * 400, "7" * 5000, "0.5", "1e-320", "0x10", "1_000", "٣", "²", "true", "null", '""', "[]", "{}",
)  # fmt: skip
"""Numbers that are too large, too small, of another kind, or only look like numbers."""
TOKENS = (
    "\x00", "\x1b[31m", "\r", "\u2028", "'", '"', "\\", "{", "}", "[", "]", "(", ")", "<", ">", "%", "#", "=", ",", "|",
    ":", "../../../etc/passwd", "a" * 5000, "{x}", "{{", "-", "--", "é", "\U0001f600", "%s", "$(true)", "\t", " ",
)  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 3_000_000_000, 2**63, 10**30, 10**400, -(10**18), 0.5, -0.5, 1e308, float("inf"),
    float("nan"), "", "x", "a" * 3000, "\x00", "\ud800", "\x1b[2J", "1", [], [1], [[]], {}, {"": 1}, [None] * 50,
    {"name": []},
)  # fmt: skip
"""Values of JSON of every type, with the extremes of each."""
DTYPES = (
    "'<i8'", "'|O'", "'<M8[s]'", "[('a', '<i8')]", "'<f8'", "'|V0'", "'<U2000000000'", "'<c16'", "'>u2'", "'x'", "7",
    "'<U0'",
)  # fmt: skip
SHAPES = (
    "(3,)", "(3000000000,)", "(-1,)", "4", "(2,)", "(99999, 99999, 99999)", "(1e9,)", f"({'9' * 5000},)", "(0,)",
    "(1, 1)", "()",
)  # fmt: skip
"""Element types and shapes in the header of an array."""
DEEP = 100_000
LONG = 2_000_000


def flip(content: bytes, draw: random.Random) -> bytes:
    """Change up to eight bytes."""
    damaged = bytearray(content)
    for _ in range(draw.randint(1, 8) if damaged else 0):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    return bytes(damaged)


def truncate(content: bytes, draw: random.Random) -> bytes:
    """Cut off the end."""
    return content[: draw.randrange(len(content) + 1)]


def delete(content: bytes, draw: random.Random) -> bytes:
    """Remove a part."""
    start, end = _part(content, draw)
    return content[:start] + content[end:]


def duplicate(content: bytes, draw: random.Random) -> bytes:
    """Repeat a part."""
    start, end = _part(content, draw)
    return content[:end] + content[start:end] * draw.choice((1, 1, 2, 50)) + content[end:]


def swap(content: bytes, draw: random.Random) -> bytes:
    """Put a part elsewhere."""
    start, end = _part(content, draw)
    remaining = content[:start] + content[end:]
    at = draw.randrange(len(remaining) + 1)
    return remaining[:at] + content[start:end] + remaining[at:]


def insert_token(content: bytes, draw: random.Random) -> bytes:
    """Insert control characters, brackets, quotes or a long word."""
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice(TOKENS).encode() + content[at:]


def insert_bytes(content: bytes, draw: random.Random) -> bytes:
    """Insert bytes that are no UTF-8."""
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.randbytes(draw.randint(1, 16)) + b"\xff" + content[at:]


def delete_line(content: bytes, draw: random.Random) -> bytes:
    """Remove, repeat or exchange lines."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(3)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return b"".join(lines)


def replace_number(content: bytes, draw: random.Random) -> bytes:
    """Replace a number by another one or by no number."""
    return _replace_match(rb"\d+(?:\.\d+)?", content, draw, lambda: draw.choice(NUMBERS).encode())


def replace_word(content: bytes, draw: random.Random) -> bytes:
    """Replace a word by another word of the file."""
    words = re.findall(rb"[A-Za-z_][\w.\-]*", content) or [b"x"]
    return _replace_match(rb"[A-Za-z_][\w.\-]*", content, draw, lambda: draw.choice(words))


def replace_whole(content: bytes, draw: random.Random) -> bytes:
    """Return another file: empty, zeros, one long line, deep nesting, or random bytes."""
    return draw.choice((
        b"", b"\x00" * 100, b"\xef\xbb\xbf", b"\xff\xfe\x00a", b"\n" * 5000, draw.randbytes(300), b"[" * DEEP,
        b"a" * LONG, b"9" * 10_000, b'{"a":' * DEEP, b"PK\x03\x04", content[:100] + b"(" * DEEP + content[100:],
    ))  # fmt: skip


def mutate_json(content: bytes, draw: random.Random) -> bytes:
    """Replace, remove or repeat one value of a JSON document, or nest it deeply."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return flip(content, draw)
    if draw.random() < 0.03:
        return _nested(json.dumps(document), draw)
    _change_value(document, draw)
    return json.dumps(document, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def mutate_json_line(content: bytes, draw: random.Random) -> bytes:
    """Change one line of JSON."""
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = mutate_json(lines[at], draw)
    return b"\n".join(lines)


def mutate_toml(content: bytes, draw: random.Random) -> bytes:
    """Replace one value of a TOML file, or one part of a value."""
    if draw.random() < 0.03:
        return content + b"\ndeep = " + b"[" * DEEP
    literals = (
        *NUMBERS, '"x"', '""', "[1, 2]", "[[]]", "{ a = 1 }", '["a", 1]', "1979-05-27", "inf", '"' + "y" * 5000 + '"',
        '"\\u0000"', "false", "{ low = 1 }", '"{missing}"', "['']", "-9223372036854775808",
    )  # fmt: skip
    return _replace_match(rb"(?<== )[^\n]+", content, draw, lambda: draw.choice(literals).encode())


def mutate_array(content: bytes, draw: random.Random) -> bytes:
    """Change the header of an ``.npy`` file: its shape, its dtype, its length, or its order."""
    descr, shape = draw.choice(DTYPES), draw.choice(SHAPES)
    whole = f"{{'descr': {descr}, 'fortran_order': {draw.choice(('False', 'True', '3'))}, 'shape': {shape}, }}"
    headers = (whole, whole, whole, "(" * 5000, whole[: len(whole) // 2], "__import__('os')", "")
    header = draw.choice(headers).encode()
    version = draw.choice((1, 1, 1, 2, 3, 9))
    width = "<H" if version == 1 else "<I"
    size = draw.choice((len(header), len(header), len(header), 65535, 0))
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack(width, size) + header + content[80:]


def mutate_zip(content: bytes, draw: random.Random) -> bytes:
    """Change the members of a zip archive: their content, names and number; or add a bomb or a wrong size."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError):
        return flip(content, draw)
    if not members:
        return content
    name = draw.choice(list(members))
    kind = draw.randrange(8)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members[f"{name}.npy"] = members.pop(name)
    elif kind == 2:
        members[name] = b"\x00" * 40_000_000
    elif kind == 3:
        members[name] = members[draw.choice(list(members))]
    elif kind == 4 and name.endswith(".npy"):
        members[name] = mutate_array(members[name], draw)
    elif members[name][:1] == b"{":
        members[name] = mutate_json(members[name], draw)
    else:
        members[name] = draw.choice((flip, truncate, delete))(members[name], draw)
    return zipped(members, zipfile.ZIP_STORED if kind == 7 else zipfile.ZIP_DEFLATED)


def wrong_zip_sizes(content: bytes, draw: random.Random) -> bytes:
    """Claim another size, method or flag for a member of a zip archive in its directory."""
    at = content.rfind(b"PK\x01\x02", 0, draw.randrange(len(content) + 1))
    if at < 0:
        return flip(content, draw)
    claims = ((20, 2**32 - 2), (24, 2**32 - 2), (24, 2**31), (24, 0), (20, 0), (42, 2**31), (10, 12), (10, 14), (8, 1))
    offset, value = draw.choice(claims)
    size = 2 if offset in (8, 10) else 4
    return content[: at + offset] + value.to_bytes(size, "little") + content[at + offset + size :]


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of the members."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


ANY: tuple[Mutator, ...] = (flip, truncate, delete, duplicate, swap, insert_token, insert_bytes)
TEXT: tuple[Mutator, ...] = (
    *ANY,
    delete_line,
    delete_line,
    replace_number,
    replace_number,
    replace_number,
    replace_word,
    replace_word,
)
MUTATORS: dict[Form, tuple[Mutator, ...]] = {
    Form.TEXT: TEXT,
    Form.JSON: (*TEXT, *[mutate_json] * 14),
    Form.JSON_LINES: (*TEXT, *[mutate_json_line] * 14),
    Form.TOML: (*TEXT, *[mutate_toml] * 10),
    Form.ARRAY: (*ANY, *[mutate_array] * 10),
    Form.ZIP: (*ANY, *[mutate_zip] * 8, *[wrong_zip_sizes] * 3),
    Form.BINARY: ANY,
}
"""Form → mutators, each drawn with equal probability."""


def mutate(content: bytes, form: Form, draw: random.Random) -> bytes:
    """Return the content with one to three kinds of damage."""
    if draw.random() < 0.03:
        return replace_whole(content, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice(MUTATORS[form])(content, draw)
    return content


def _part(content: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    return start, min(len(content), start + draw.choice((1, 2, 5, 20, 100, 1000)))


def _replace_match(pattern: bytes, content: bytes, draw: random.Random, value: Callable[[], bytes]) -> bytes:
    matches = list(re.finditer(pattern, content))
    if not matches:
        return insert_token(content, draw)
    match = draw.choice(matches)
    return content[: match.start()] + value() + content[match.end() :]


def _change_value(document: object, draw: random.Random) -> None:
    """Change one value of a document in place, at a random depth."""
    places = list(_places(document))
    if not places:
        return
    container, key = draw.choice(places)
    if draw.random() < 0.15:
        del container[key]
    elif draw.random() < 0.15 and isinstance(container, list):
        container.extend([container[key]] * draw.choice((1, 50)))
    else:
        container[key] = draw.choice(VALUES)


def _places(tree: object) -> list[tuple[Any, Any]]:
    """Return each container of a document with each of its keys or positions."""
    if not isinstance(tree, dict | list):
        return []
    keys: list[Any] = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    values = tree.values() if isinstance(tree, dict) else tree
    return [*((tree, key) for key in keys), *(place for value in values for place in _places(value))]


def _nested(text: str, draw: random.Random) -> bytes:
    return draw.choice(("[" * DEEP + text + "]" * DEEP, '{"a":' * DEEP + text + "}" * DEEP)).encode()

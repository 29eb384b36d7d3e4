"""Validation errors become sentences with the line, the value, the reason and the fix."""

from enum import Enum

import msgspec
import pytest

from leadline.core.documents import from_toml
from leadline.core.errors import InvalidInput


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    colour: Colour = Colour.GREEN
    name: str = ""


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    leaves: dict[str, Leaf]
    rows: list[Leaf] = []
    height: float | None = None


GOOD = "height = 2\nrows = [\n  { name = 'one', size = 1 },\n  { name = 'two', size = 2 },\n]\n[leaves.a]\nsize = 3\n"


def test_a_good_document_is_read():
    assert Leaf(3) == from_toml(GOOD, Tree, label="tree.toml").leaves["a"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("height = 2", "hieght = 2", "line 1: there is no key 'hieght': did you mean 'height'?"),
        ("height = 2", "height = 'tall'", "line 1: height is 'tall', but it must be a number"),
        ("size = 2", "size = 2.5", "line 4: size is 2.5 in 'two', but it must be a whole number"),
        ("size = 2", "sise = 2", "line 4: there is no key 'sise' in 'two': did you mean 'size'?"),
        ("name = 'two', size = 2", "name = 'two'", "the key 'size' is missing in 'two': add it"),
        ("[leaves.a]", "[leaves.a]\ncolour = 'rde'", "line 7: colour is 'rde' in 'a': did you mean 'red'?"),
        ("[leaves.a]", "[leaves.b]\n[leaves.a]", "the key 'size' is missing in 'b': add it"),
        ("[leaves.a]\nsize = 3", "[leaves]\na = 3", "line 7: a is 3, but it must be a table"),
    ],
)
def test_an_error_gives_the_line_the_value_the_reason_and_the_fix(old, new, message):
    with pytest.raises(InvalidInput) as caught:
        from_toml(GOOD.replace(old, new), Tree, label="tree.toml")
    assert str(caught.value) == f"tree.toml: {message}"


def test_an_ambiguous_line_is_left_out():
    with pytest.raises(InvalidInput) as caught:
        from_toml(GOOD.replace("size = 1", "size = 'x'").replace("size = 2", "size = 'x'"), Tree, label="tree.toml")
    assert str(caught.value) == "tree.toml: size is 'x' in 'one', but it must be a whole number"

"""Validation errors become sentences with the line, the value, the reason and the fix."""

from enum import Enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.document_errors import InvalidFile, has_odd_number, list_faults
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


def refused(text):
    with pytest.raises(InvalidFile) as caught:
        from_toml(text, Tree, label="tree.toml", finite=True)
    return caught.value


def test_an_ambiguous_line_is_left_out():
    faults = refused(GOOD.replace("size = 1", "size = 'x'").replace("size = 2", "size = 'x'")).faults
    assert [fault.sentence for fault in faults] == [
        "size is 'x' in 'one', but it must be a whole number", "size is 'x' in 'two', but it must be a whole number",
    ]  # fmt: skip


def test_all_faults_of_a_file_are_listed_with_their_fixes():
    text = GOOD.replace("height = 2", "height = 'tall'").replace("size = 2", "sise = 2")
    text = text.replace("[leaves.a]", "[leaves.b]\n[leaves.a]\ncolour = 'rde'")
    error = refused(text)
    assert str(error) == (
        "tree.toml has 4 faults:\n"
        "  the key 'size' is missing in 'b': add it\n"
        "  line 8: colour is 'rde' in 'a': did you mean 'red'?\n"
        "  line 4: there is no key 'sise' in 'two': did you mean 'size'?\n"
        "  line 1: height is 'tall', but it must be a number"
    )
    assert [fault.line for fault in error.faults] == [None, 8, 4, 1]


@pytest.mark.parametrize("number", ["inf", "-inf", "nan"])
def test_a_number_that_is_not_finite_is_refused(number):
    assert "but it must be a number below 1e+30" in str(refused(GOOD.replace("height = 2", f"height = {number}")))


@pytest.mark.parametrize("number", ["1e300", "9" * 400, "9" * 5000])
def test_a_number_that_no_unit_can_hold_is_refused(number):
    with pytest.raises(InvalidInput) as caught:
        from_toml(GOOD.replace("height = 2", f"height = {number}"), Tree, label="tree.toml", finite=True)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["rows = " + "[" * 5000 + "]" * 5000, "height = 2026-02-31"])
def test_what_python_cannot_parse_is_one_clear_sentence(text):
    with pytest.raises(InvalidInput, match=r"^tree.toml is not valid TOML: .{,200}$"):
        from_toml(text, Tree, label="tree.toml")


def test_a_long_value_is_cut():
    assert len(str(refused(GOOD.replace("height = 2", f"height = '{'x' * 10_000}'")))) < 200


_KEYS = st.sampled_from(["height", "rows", "leaves", "size", "colour", "name", "a", "sise"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=12,
)  # fmt: skip


@given(_VALUES)
def test_a_document_has_faults_exactly_if_it_does_not_convert(document):
    try:
        msgspec.convert(document, Tree)
        good = not has_odd_number(document)
    except msgspec.ValidationError:
        good = False
    assert (list_faults(document, Tree) == []) is good

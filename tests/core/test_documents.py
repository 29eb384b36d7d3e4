"""Documents that nest deeply, hold huge numbers or are no text end in one sentence, and soon."""

import time

import pytest

from leadline.core.documents import from_json, parse_json, parse_toml, refuse_damaged, split_command
from leadline.core.errors import InvalidInput, UnknownName

DEEP = 100_000


@pytest.mark.parametrize("text", ["[" * DEEP, '{"a":' * DEEP, b'{"a": "\xff"}', "9" * 5000, "{"])
def test_json_that_cannot_be_decoded_is_named(text):
    with pytest.raises(InvalidInput, match=r"^x\.json cannot be read: "):
        from_json(text, dict, label="x.json")
    with pytest.raises(InvalidInput, match=r"^x\.json is not JSON: "):
        parse_json(text, label="x.json")


def test_text_that_cannot_be_encoded_is_named():
    with pytest.raises(InvalidInput, match=r"^x\.json cannot be read: .*surrogates"):
        from_json('{"a": "\ud800"}', dict, label="x.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * DEEP, "nested too deeply"),
        ("a." * DEEP + "a = 1", "has more than 100 parts"),
        ('"a" . ' * 200 + "a = 1", "has more than 100 parts"),
        ("[" + "a." * 200 + "a]", "has more than 100 parts"),
        ("a = " + "9" * 5000, "is not valid TOML"),
        ("a = [{b = " + "9" * 400 + "}]", "is too large: check its digits"),
        ("a = 1e300", "is too large: check its digits"),
    ],
)
def test_toml_that_cannot_be_used_is_named_soon(text, says):
    began_s = time.process_time()
    with pytest.raises(InvalidInput, match=r"^x\.toml") as caught:
        parse_toml(text, label="x.toml")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.process_time() - began_s < 2


def test_ordinary_toml_is_unchanged():
    text = 'a.b.c = 9223372036854775807\nx = "' + "w.w." * 20 + '"\ny = ["0.1.2.3", 1.5, inf]\n'
    assert parse_toml(text, label="x.toml")["a"]["b"]["c"] == 2**63 - 1


def test_a_huge_word_of_a_command_is_refused_soon():
    began_s = time.process_time()
    with pytest.raises(InvalidInput, match="has 5,000,000 characters: shorten it"):
        split_command("a" * 5_000_000)
    assert time.process_time() - began_s < 1
    with pytest.raises(InvalidInput, match=r"job\.toml: the command \"python 'x\" cannot be split"):
        split_command("python 'x", label="job.toml")


def test_errors_of_damaged_data_are_converted_and_others_kept():
    with (
        pytest.raises(InvalidInput, match=r"^x is damaged \(IndexError: pop from empty list\)$"),
        refuse_damaged("x is damaged"),
    ):
        list[int]().pop()
    with pytest.raises(UnknownName), refuse_damaged("x is damaged"):
        raise UnknownName("device", "x", ["y"])
    with pytest.raises(OSError, match="disk"), refuse_damaged("x is damaged"):
        raise OSError("disk")

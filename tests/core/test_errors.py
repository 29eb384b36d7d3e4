"""Messages show long values as excerpts and obey no control characters of the input."""

from leadline.core.errors import LONGEST_MESSAGE, InvalidInput, UnknownName, excerpt


def test_an_ordinary_message_is_unchanged():
    text = "the name 'x' of user's file can't be read: it's not there\nnext line"
    assert str(InvalidInput(text)) == text


def test_a_long_value_is_cut_to_sixty_characters():
    value = "a" * 50_000
    for message in (f"the value {value!r} is no size", f"{value} is no size", f"unknown {{{value}}}"):
        assert len(str(InvalidInput(message))) < 100
    assert str(InvalidInput(f"the value {value!r} is no size")).endswith("is no size")
    assert len(str(UnknownName("device", value, ["A100"]))) < 120


def test_control_characters_are_escaped():
    assert str(InvalidInput("the name \x1b[31mred\x00 is none")) == r"the name \x1b[31mred\x00 is none"
    assert str(InvalidInput("a lone \ud800")) == r"a lone \ud800"


def test_a_message_of_many_words_loses_its_middle():
    text = str(InvalidInput(f"the list {[1] * 5000} is too long: shorten it"))
    assert len(text) < LONGEST_MESSAGE + 10
    assert text.startswith("the list [1, 1")
    assert text.endswith("shorten it")


def test_an_excerpt_keeps_both_ends():
    assert excerpt("short") == "short"
    text = excerpt("begin" + "x" * 500 + "end")
    assert len(text) == 60
    assert text.startswith("begin")
    assert text.endswith("end")

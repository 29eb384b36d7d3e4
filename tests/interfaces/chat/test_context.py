"""A conversation stays within the context of the model, and says what it left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.interfaces.chat.context import CUT, MessageHistory, count_tokens, shorten

TABLE = "memory_bytes  17179869184  320000000000.0\n" * 200


def filled(tokens, *exchanges):
    history = MessageHistory("rules", tokens)
    for question, *results in exchanges:
        history.add("user", question)
        for result in results:
            history.add("assistant", "", tool_calls=[{"function": {"name": "devices", "arguments": {}}}])
            history.add("tool", result, tool_name="devices")
    return history


def total(messages):
    return sum(count_tokens(message["content"]) for message in messages)


def contents(messages, role):
    return [message["content"] for message in messages if message["role"] == role]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("", 0, 0), ("How much memory has a T4?", 7, 9), ("17179869184", 11, 11), ("█" * 10, 10, 10), ("中文", 2, 2)],
)
def test_tokens_are_rather_too_many_than_too_few(text, least, most):
    assert least <= count_tokens(text) <= most


@given(st.text(max_size=400), st.integers(30, 200))
def test_a_shortened_text_is_no_longer_than_asked_and_begins_as_before(text, tokens):
    short = shorten(text, tokens)
    assert short == text or (count_tokens(short) <= tokens and short.endswith(CUT))
    assert text.startswith(short.removesuffix(CUT))


def test_nothing_is_left_out_while_all_of_it_fits():
    messages, note = filled(100_000, ("T4?", TABLE), ("A40?", TABLE)).fit()
    assert note == ""
    assert contents(messages, "tool") == [TABLE, TABLE]


def test_the_oldest_results_are_shortened_first():
    room = 3 * count_tokens(TABLE)
    messages, note = filled(room, ("T4?", TABLE), ("A40?", TABLE), ("L4?", TABLE)).fit()
    first, *later = contents(messages, "tool")
    assert first.endswith(CUT)
    assert later == [TABLE, TABLE]
    assert contents(messages, "user") == ["T4?", "A40?", "L4?"]
    assert note == "The model cannot read all of this: 1 result shortened."


def test_then_the_oldest_questions_go_but_never_the_rules_and_the_newest():
    room = count_tokens(TABLE) * 2
    history = filled(room, *((f"{'word ' * 100}{number}?", TABLE) for number in range(40)))
    messages, note = history.fit()
    assert total(messages) <= room
    assert messages[0]["content"] == "rules"
    assert messages[1]["role"] == "user"
    assert contents(messages, "user")[-1].endswith("39?")
    assert contents(messages, "tool")[-1] == TABLE
    assert "older questions left out" in note


def test_a_result_that_is_longer_than_its_share_is_cut_and_said_once():
    history = filled(1000, ("T4?", TABLE))
    messages, note = history.fit()
    assert count_tokens(contents(messages, "tool")[0]) <= 500
    assert note == "The model cannot read all of this: 1 result shortened."
    assert history.fit()[1] == ""


def test_eight_long_results_for_one_question_fit():
    messages, _ = filled(3000, ("compare", *[TABLE] * 8)).fit()
    assert total(messages) <= 3000
    assert messages[1]["content"] == "compare"
    assert len(contents(messages, "tool")) == 8


def test_a_question_that_is_too_long_is_refused_and_the_next_one_is_answered():
    history = filled(500, ("word " * 3000,))
    with pytest.raises(InvalidInput, match="shorten the question"):
        history.fit()
    history.add("assistant", "")
    history.add("user", "T4?")
    messages, note = history.fit()
    assert contents(messages, "user") == ["T4?"]
    assert "1 older question left out" in note

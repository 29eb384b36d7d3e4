"""Predictions of two commits are compared to the last bit, sentences aside."""

import json

import pytest

from benchmarks.predictions import INPUTS, compare, grouped, read_questions, steady

ANSWER = {"schema": "leadline.estimate/1", "step_s": {"point": 0.1}, "device": "A100 SXM4 80GB", "reasons": ["a b"]}


def write(path, answer, code=0):
    path.write_text(json.dumps({"answers": {"question": {"exit": code, "answer": answer}}}))
    return path


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"step_s": {"point": 0.1 + 2e-17 * 8}}, "question.step_s.point"),
        ({"device": "A100 SXM4 40GB"}, "question.device"),
        ({"cost": 1.0}, "question.cost: only in B"),
    ],
)
def test_numbers_names_and_keys_are_compared_to_the_last_bit(tmp_path, capsys, changes, line):
    first, second = write(tmp_path / "a", ANSWER), write(tmp_path / "b", {**ANSWER, **changes})
    assert compare(first, second, texts=False) == 1
    assert line in capsys.readouterr().out


def test_sentences_are_compared_only_on_request(tmp_path):
    first, second = write(tmp_path / "a", ANSWER), write(tmp_path / "b", {**ANSWER, "reasons": ["c d", "e f"]})
    assert compare(first, second, texts=False) == 0
    assert compare(first, second, texts=True) == 1


def test_another_exit_code_is_a_difference(tmp_path):
    assert compare(write(tmp_path / "a", ANSWER), write(tmp_path / "b", ANSWER, 3), texts=False) == 1


def test_the_questions_have_names_of_their_own_and_their_files():
    questions = read_questions()
    assert len({question.name for question in questions}) == len(questions) > 200
    files = {word[1:] for question in questions for word in question.words if word.startswith("@") and ".py" in word}
    assert all((INPUTS / name.partition(":")[0]).is_file() for name in files)


def test_questions_that_share_state_are_asked_in_order():
    for group in grouped(read_questions("^train")):
        assert len({question.home for question in group}) == 1
        assert group[0].words[0] == "train"


def test_folders_and_volatile_fields_are_dropped():
    document = {"path": "/made/runs.csv", "date": "today", "rows": [{"seconds": 1.0, "n": 2}]}
    kept = steady(document, (("/made", "WORK"),), {"date", "seconds"})
    assert kept == {"path": "WORK/runs.csv", "rows": [{"n": 2}]}

"""The rows about answers: each reproducer meets its target."""

import tempfile

import pytest

from benchmarks.trust import answers
from benchmarks.trust.answers import rows


def test_every_reproducer_of_a_wrong_answer_meets_its_target_and_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    missed = [row for row in rows() if not row.met]
    assert missed == []
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_fails_leaves_no_files_either(tmp_path, monkeypatch):
    def fail():
        raise OSError("no space left")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(answers, "orders_by_name", fail)
    with pytest.raises(OSError, match="no space left"):
        rows()
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path)

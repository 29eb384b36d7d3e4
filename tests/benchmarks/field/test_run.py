"""The parts of ``bench field``."""

import pytest

from benchmarks.field import run as field
from benchmarks.results import BenchmarkRow
from leadline.core.errors import UnknownName


def test_an_unknown_part_is_refused_with_the_names_of_all():
    with pytest.raises(UnknownName, match=r"saesons.*seasons"):
        field.run(only="saesons")


def test_parts_are_measured_in_the_order_they_are_named_and_their_files_are_kept(tmp_path, monkeypatch):
    def measure(folder, *, quick):
        (folder / "copies.jsonl").write_text("{}")
        return [BenchmarkRow(folder.name, 1.0, "", n=1 + quick)]

    monkeypatch.setattr(field, "ingestion_rows", measure)
    monkeypatch.setattr(field, "transfer_rows", measure)
    monkeypatch.setenv(field.FOLDER_VARIABLE, str(tmp_path / "kept"))
    result = field.run(quick=True, only="transfers,ingestion")
    assert [(row.name, row.n) for row in result.rows] == [("transfers", 2), ("ingestion", 2)]
    assert (tmp_path / "kept/transfers/copies.jsonl").exists()

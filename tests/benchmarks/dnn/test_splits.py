"""What a split says of itself: errors, baselines and coverage."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.dnn.page import tables
from benchmarks.dnn.run import run
from benchmarks.dnn.splits import RefusedSplit, SplitResult
from benchmarks.tables import read_table, select_rows
from leadline.core.errors import InvalidInput


def split(**more):
    measured = np.array([100.0, 200.0, 400.0, 800.0])
    answers = {"Leadline": measured * [1.1, 0.9, 1.0, 1.2], "one": measured * 2, "two": measured * 1.5}
    group = np.array(["a", "a", "b", "b"])
    return SplitResult(
        "table", "split", measured, answers, measured * 0.9, measured * [1.1, 0.95, 1.1, 1.1], group, **more
    )


def test_the_error_stands_beside_the_best_of_the_others():
    first, *_ = split(mape=5.0).rows()
    assert pytest.approx(10.0) == first.value
    assert pytest.approx(50.0) == first.baseline
    assert first.met is False
    assert "two" in first.how


def test_median_and_ninetieth_percentile_are_rows_where_they_have_a_target():
    named = {row.name: row for row in split(median=11.0, p90=15.0).rows()}
    assert pytest.approx(10.0) == named["table: split, median"].value
    assert named["table: split, median"].met is True
    assert named["table: split, P90"].met is False


def test_coverage_is_told_apart_by_group_and_has_no_target_where_rows_are_few():
    named = {row.name: row for row in split().rows()}
    assert named["table: split, coverage (a)"].value == 50.0
    assert named["table: split, coverage (b)"].value == 100.0
    assert named["table: split, coverage (b)"].met is None


def test_each_device_that_is_told_apart_has_a_target_of_its_own():
    one = split(apart=np.array(["T4", "T4", "V100", "V100"]), apart_mape=10.5)
    named = {row.name: row for row in one.rows()}
    new, old = named["table: split, V100, MAPE"], named["table: split, T4, MAPE"]
    assert (pytest.approx(10.0), True) == (old.value, old.met)
    assert (pytest.approx(10.0), True, 2) == (new.value, new.met, new.n)
    assert replace(one, apart_mape=9.0).rows()[1].met is False
    assert {key: one.document()["apart"]["T4"][key] for key in ("target", "n")} == {"target": 10.5, "n": 2}


def test_methods_that_are_compared_have_a_row_and_a_line_each():
    compared = split(compared=True)
    named = {row.name: row for row in compared.rows()}
    assert named["table: split, one, MAPE"].value == pytest.approx(100.0)
    assert named["table: split, two, MAPE"].value == pytest.approx(50.0)
    assert "table: split, two, MAPE" not in {row.name for row in split().rows()}
    assert "| … two | 4 | 50.0 % |" in tables([compared.document()])


def test_the_page_has_a_line_for_each_device_that_is_told_apart():
    page = tables([split(apart=np.array(["T4", "T4", "V100", "V100"]), apart_mape=9.0).document()])
    assert "| … T4 | 2 | **10.0 %** | 9 % |" in page


def test_coverage_of_many_rows_has_bounds_on_both_sides():
    measured = np.ones(40)
    wide = SplitResult("t", "s", measured, {"Leadline": measured}, measured * 0.5, measured * 2, np.full(40, ""))
    covered = wide.rows()[-1]
    assert covered.value == 100.0
    assert (covered.target, covered.target_high) == (85.0, 95.0)
    assert covered.met is False


def test_the_row_says_what_chance_leaves_of_its_coverage():
    """Of 40 rows that 90 % hold 32 to 39 are in, in 19 of 20 cases; of 4 curves 2 to 4."""
    measured = np.ones(40)
    one = SplitResult("t", "s", measured, {"Leadline": measured}, measured * 0.5, measured * 2, np.full(40, ""))
    assert "chance gives 80 to 98 % for 40 rows" in one.rows()[-1].how
    curves = replace(one, unit=np.repeat(["a", "b", "c", "d"], 10))
    assert "chance gives 50 to 100 % for 4 independent rows" in curves.rows()[-1].how


def test_a_folder_without_the_table_is_refused_by_name(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(InvalidInput, match=r"holds no timm_steps\.parquet"):
        read_table(tmp_path, "timm_steps")


def test_a_table_comes_back_as_it_was_written(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    written = pa.table({"ms": [1.5, None], "gpu": ["a", None], "n": [1, 2]})
    parquet.write_table(written, tmp_path / "t.parquet")
    columns = read_table(tmp_path, "t")
    assert columns["gpu"].tolist() == ["a", ""]
    assert np.isnan(columns["ms"][1])
    assert select_rows(columns, columns["n"] > 1)["n"].tolist() == [2]
    with pytest.raises(InvalidInput, match="no column watts"):
        read_table(tmp_path, "t", ["ms", "watts"])


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(InvalidInput, match=r"t\.parquet cannot be read"):
        read_table(tmp_path, "t")


def test_the_bench_asks_for_a_folder():
    with pytest.raises(InvalidInput, match="--data"):
        run()


def test_the_page_marks_what_was_missed_and_tells_the_best_other_method():
    text = tables([split(mape=5.0, median=11.0).document()])
    assert "## Table" in text
    row = text.splitlines()[-1]
    assert "**10.0 %**" in row
    assert "| 10.0 % |" in row
    assert "50.0 % (two)" in row
    assert "50 to 100 % (few rows)" in row


def test_the_page_tells_what_was_refused():
    text = tables([RefusedSplit("table", "other links", 16, 16, 411.0).document()])
    assert "16 of 16 refused" in text

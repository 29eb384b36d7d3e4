"""The bench command: which bench runs, what it prints and writes, and how it ends."""

import json
import sys
from types import ModuleType

import pytest

from benchmarks import command as bench
from benchmarks.provenance import ROOT
from benchmarks.results import BenchmarkResult, BenchmarkRow, at_least, at_most
from leadline.interfaces.cli.command import run_command


@pytest.fixture
def fake_bench(monkeypatch):
    """Register a bench called ``sample`` whose rows the test chooses."""

    def register(*rows):
        def run(*, quick=False):
            return BenchmarkResult("sample", (*rows, BenchmarkRow("was quick", float(quick), "")))

        module = ModuleType("sample_bench")
        module.run = run
        monkeypatch.setitem(sys.modules, "sample_bench", module)
        monkeypatch.setitem(bench.BENCHMARKS, "sample", bench.Benchmark("sample_bench", "a sample", ("src",), seed=7))

    return register


def test_a_bench_that_meets_its_targets_ends_with_zero_and_prints_its_rows(fake_bench, capsys):
    fake_bench(at_most("error", 12.5, 20, "%"))
    assert run_command(bench.bench, "bench", ["sample"]) == 0
    printed = capsys.readouterr().out
    assert "12.5 %" in printed
    assert "≤ 20" in printed


def test_a_missed_target_ends_with_one_and_names_the_row(fake_bench, capsys):
    fake_bench(at_most("error", 12.5, 20, "%"), at_least("speed-up", 3, 5, "times"))
    assert run_command(bench.bench, "bench", ["sample"]) == 1
    streams = capsys.readouterr()
    assert "1 of 3 rows missed: speed-up" in streams.err
    assert "≥ 5" in streams.out


def test_a_row_that_was_not_measured_says_why_and_misses_nothing(fake_bench, capsys):
    fake_bench(BenchmarkRow("trainer", None, "", target=1, how="transformers is not installed"))
    assert run_command(bench.bench, "bench", ["sample"]) == 0
    printed = capsys.readouterr().out
    assert "not measured" in printed
    assert "transformers" in printed


def test_the_json_file_holds_the_versioned_rows(fake_bench, tmp_path):
    fake_bench(at_most("error", 12.5, 20, "%"))
    target = tmp_path / "rows.json"
    assert run_command(bench.bench, "bench", ["sample", "--quick", "--json", str(target)]) == 0
    document = json.loads(target.read_text())
    assert document["schema"] == "leadline.bench/1"
    assert document["bench"] == "sample"
    assert (document["seed"], document["measures"]) == (7, ["src"])
    assert {"cpu", "cores", "memory_bytes", "system", "python"} <= set(document["machine"])
    assert document["date"]
    assert [(row["name"], row["met"]) for row in document["rows"]] == [("error", True), ("was quick", None)]
    assert document["rows"][1]["value"] == 1


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["sampel"], "unknown bench 'sampel': did you mean 'sample'"),
        (["sample", "--data", "nowhere"], "reads no data"),
        (["sample", "--json", "no/such/folder/rows.json"], "create it"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(fake_bench, capsys, arguments, fragment):
    fake_bench()
    assert run_command(bench.bench, "bench", arguments) == 2
    message = capsys.readouterr().err
    assert fragment in message
    assert message.count("\n") == 1


def test_a_quick_run_of_a_real_bench_is_written_with_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    target = tmp_path / "rows.json"
    assert run_command(bench.bench, "bench", ["catalog", "--quick", "--json", str(target)]) in (0, 1)
    document = json.loads(target.read_text())
    assert document["schema"] == "leadline.bench/1"
    assert document["rows"]
    for row in document["rows"]:
        assert {"name", "value", "unit", "target", "target_high", "met", "baseline", "n", "how"} == set(row)
        assert row["value"] is not None


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["local", "--data", "."], "bench local reads no data: leave --data . out"),
        (["speed", "--data", "."], "bench speed reads no data"),
        (["speed", "--only", "waits"], "bench speed has no parts: leave --only waits out"),
        (["plane", "--only", "wait"], "unknown part of bench plane 'wait': did you mean 'waits'"),
        (["plane", "--only", "waits"], "--only waits replays a published trace: name its folder with --data"),
        (["locla"], "unknown bench 'locla': did you mean 'local'"),
        (["local", "--json", "no/such/rows.json"], "there is no folder no/such; create it"),
        (["local", "--fast"], "no such option: --fast; did you mean --quick"),
        ([], "missing argument 'NAME'"),
    ],
)
def test_a_bench_that_cannot_run_is_refused_before_anything_is_measured(capsys, arguments, fragment):
    assert run_command(bench.bench, "bench", arguments) == 2
    message = capsys.readouterr().err
    assert fragment in message
    assert message.count("\n") == 1


def test_every_measured_path_exists():
    paths = [path for benchmark in bench.BENCHMARKS.values() for path in benchmark.measures]
    assert [path for path in paths if not (ROOT / path).exists()] == []

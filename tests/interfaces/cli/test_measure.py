"""``leadline measure`` as a user types it: a file begun and gone on with, the kit written, and what is refused."""

import json
import os
import subprocess
import sys

import pytest

from leadline.interfaces.cli.main import main
from leadline.kit import run
from leadline.kit.design import design_points


def shorten_design(monkeypatch, points):
    """Let a run end after so many points: how many fit in a time depends on the machine's load."""
    monkeypatch.setattr(run, "design_points", lambda settings: design_points(settings)[:points])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_file_is_begun_and_gone_on_with_by_the_same_command(tmp_path, capfd, monkeypatch):
    pytest.importorskip("torch")
    path = tmp_path / "rows.jsonl"
    words = ["measure", "--out", str(path), "--quick", "--no-ops", "--device", "cpu", "--minutes", "60", "--json"]
    shorten_design(monkeypatch, 2)
    assert main(words) == 0
    first = capfd.readouterr()
    document = json.loads(first.out)
    assert ("leadline.measured/1", str(path)) == (document["schema"], document["path"])
    assert f"[{document['in_file']}, " in first.err
    assert "note: energy is not measured: there is no meter for a CPU" in first.err
    shorten_design(monkeypatch, 4)
    assert main(words) == 0
    again = json.loads(capfd.readouterr().out)
    assert sum(again["outcomes"].values()) == 2
    assert again["in_file"] == document["in_file"] + sum(again["outcomes"].values())
    assert again["in_file"] == path.read_text().count("\n") - 1


def test_the_kit_is_written_and_runs_without_leadline(tmp_path, capsys):
    pytest.importorskip("torch")
    kit = tmp_path / "kit.pyz"
    assert main(["measure", "--kit", str(kit)]) == 0
    assert "on a machine with torch: python kit.pyz --out rows.jsonl --minutes 20" in capsys.readouterr().out
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", str(kit), "--help"], env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Needs torch and nothing else" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name either --out FILE to measure, or --kit FILE.pyz to write the kit"),
        (["--out", "rows.jsonl", "--kit", "kit.pyz"], "name either --out FILE"),
        (["--out", "rows.jsonl", "--minutes", "soon"], "invalid value for '--minutes'"),
        (["--out", "rows.jsonl", "--minutes", "0"], "--minutes 0 is no time to measure in"),
        (["--out", "none/rows.jsonl"], "none/rows.jsonl cannot be written (No such file or directory): name another"),
        (["--out", "thesis.txt"], "thesis.txt is no file of measurements: give --out another file"),
        (["--out", "rows.jsonl", "--device", "tpu"], "--device tpu is not known: give auto, cpu or cuda"),
    ],
)
def test_an_impossible_measurement_is_refused_in_one_sentence(words, says, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis.txt").write_text("unsaved elsewhere")
    assert main(["measure", *words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert says in printed.err
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "unsaved elsewhere"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_model_is_trained_on_a_file_of_measurements(tmp_path, capfd, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    path = tmp_path / "rows.jsonl"
    shorten_design(monkeypatch, 20)
    assert main(["measure", "--out", str(path), "--quick", "--no-ops", "--device", "cpu", "--minutes", "60"]) == 0
    capfd.readouterr()
    assert main(["train", str(path), "--target", "step_s", "--to", str(tmp_path / "model.npz"), "--json"]) == 0
    card = json.loads(capfd.readouterr().out)
    assert "step_s" in json.dumps(card)

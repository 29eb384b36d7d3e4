"""The commands campaign run, status and stop, as their user sees them."""

import json
import os
import sys

import pytest

from leadline.interfaces.cli.main import main

pytest.importorskip("scipy")

CAMPAIGN = f"""
name = "naps"
command = [{sys.executable!r}, "-c", "import sys; sys.exit(CODE)", "{{n}}", "{{kind}}"]
design = "random"
scaled_down_runs = 4
full_scale_runs = 1
first_run = "0.1s"

[parameters.n]
scaled_down = [1, 10]
full_scale = [50, 100]

[parameters.kind]
choices = ["good"]
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "naps.toml"
    path.write_text(CAMPAIGN.replace("CODE", "0"))
    return path


def test_a_campaign_is_made_and_shown_and_made_no_second_time(file, capsys):
    assert main(["campaign", "run", str(file), "-y", "--max-runs", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("naps: 2 of 5 runs · ")
    assert f"resume with leadline campaign run {file}" in printed.err
    assert main(["campaign", "run", str(file), "-y"]) == 0
    assert capsys.readouterr().out.startswith("naps: 5 of 5 runs · ")
    assert main(["campaign", "run", str(file), "-y", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "leadline.campaign-run/1"
    assert (document["tally"]["completed"], document["ended_here"]) == (5, 0)
    assert main(["campaign", "status", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("COMPLETED") == 5
    assert "kind=good" in shown
    assert main(["campaign", "status", "naps", "--json"]) == 0
    assert [run["state"] for run in json.loads(capsys.readouterr().out)["runs"]] == ["COMPLETED"] * 5
    assert main(["campaign", "status"]) == 0
    assert "naps" in capsys.readouterr().out
    assert main(["campaign", "stop", "naps"]) == 0
    assert "is not running" in capsys.readouterr().err


def test_a_campaign_in_which_everything_fails_ends_with_the_reason(file, capsys):
    file.write_text(CAMPAIGN.replace("CODE", "'no data'"))
    assert main(["campaign", "run", str(file), "-y"]) == 1
    printed = capsys.readouterr().err
    assert "no run of campaign 'naps' succeeded: each FAILED with exit code 1, having written \"no data\"" in printed
    assert "--retry-failed" in printed


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["run", "FILE"], 2, "without a terminal: add -y"),
        (["run", "FILE", "-y", "--cores", "9999"], 2, "--cores is 9999, but this machine has"),
        (["run", "nothing.toml", "-y"], 2, "nothing.toml cannot be read"),
        (["run", "FILE", "-y", "--memory", "much"], 2, "'much' is not a size"),
        (["status", "nothing"], 2, "unknown campaign 'nothing'"),
        (["stop", "nothing"], 2, "unknown campaign 'nothing'"),
        (["stop"], 2, "missing argument 'NAME|CAMPAIGN.toml'"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_written(words, code, reason, file, capsys, tmp_path):
    assert code == main(["campaign", *(str(file) if word == "FILE" else word for word in words)])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "data").exists()

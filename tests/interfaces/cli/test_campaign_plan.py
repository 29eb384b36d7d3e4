"""The command campaign plan, as its user sees it."""

import json
import sys

import pytest

from leadline.interfaces.cli.main import main

pytest.importorskip("scipy")

CAMPAIGN = """
name = "classifier"
command = "python train.py --dataset {dataset} --epochs {epochs} --width {width} --threads {cores}"
budget = "20m"
limit = "10m"
first_run = "2s"
[parameters.dataset]
choices = ["mnist", "cifar10"]
[parameters.epochs]
scaled_down = [1, 3]
full_scale = [10, 60]
[parameters.width]
kind = "log-integer"
range = [64, 1024]
[resources]
cores = [1, 2]
[prices]
core_hour = 0.003
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "classifier.toml"
    path.write_text(CAMPAIGN)
    return str(path)


def shown(capsys, *arguments):
    assert main(["campaign", "plan", *arguments]) == 0
    return capsys.readouterr().out


def test_the_runs_stand_in_a_table_with_their_forecast_and_nothing_is_started(file, capsys, tmp_path):
    text = shown(capsys, file)
    assert text.startswith("classifier: adaptive design, budget 20m 00s of run time, each run at most 10m 00s\n")
    assert text.splitlines()[1].split()[:6] == ["scale", "dataset", "epochs", "width", "cores", "forecast"]
    assert text.count("\nSD ") == 9
    assert "The same number of runs at full scale: " in text
    assert "chosen later        19m 24s reserved" in text
    assert "your guess of 2.00 s for the cheapest run" in text
    assert f"Nothing was started. Start these runs with: leadline campaign run {file}" in text
    assert not (tmp_path / "data").exists()


def test_options_override_design_budget_and_seed(file, capsys):
    text = shown(capsys, file, "--design", "grid", "--budget", "3m", "--seed", "4")
    assert "grid design, budget 3m 00s of run time" in text
    assert "runs left out: over budget" in text
    assert text != shown(capsys, file, "--design", "grid", "--budget", "3m", "--seed", "5")
    dollars = shown(capsys, file, "--design", "random", "--budget", "$0.02")
    assert "random design, budget $0.020" in dollars
    assert "42 more with --all" in dollars
    assert "e-0" not in dollars
    assert shown(capsys, file, "--design", "random", "--all").count("\nSD ") == 60


def test_without_a_forecast_work_is_relative_and_the_output_has_a_hint(file, capsys, tmp_path):
    (tmp_path / "classifier.toml").write_text(CAMPAIGN.replace('first_run = "2s"\n', ""))
    text = shown(capsys, file)
    assert "1.0 ×" in text
    assert "unknown" in text
    assert 'first_run = "2s"' in text
    assert "then 60 more configurations, as the budget allows" in shown(capsys, file, "--design", "random")


def test_the_document_has_every_run_with_its_unit(file, capsys):
    document = json.loads(shown(capsys, file, "--json", "--design", "space-filling", "--budget", "1 core-hour"))
    assert document["schema"] == "leadline.campaign-plan/1"
    assert (document["unit"], document["budget"], document["design"]) == ("core-hours", 1.0, "space-filling")
    assert len(document["runs"]) == 66
    cost = sum(row["cost"] for row in document["runs"])
    assert cost == pytest.approx(sum(total["cost"] for total in document["totals"]))
    assert cost + document["kept"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--design", "gird"], "unknown design 'gird': did you mean 'grid'?"),
        (["--budget", "3 tons"], "the budget is '3 tons', which is no amount of one unit"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_a_wrong_option_is_one_sentence(file, capsys, arguments, says):
    assert main(["campaign", "plan", file, *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_runs_that_ended_are_marked_and_the_forecast_rests_on_them(file, capsys, tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "classifier.toml").write_text(CAMPAIGN.replace("python", f"'{sys.executable}'"))
    assert main(["campaign", "run", file, "-y", "--max-runs", "4"]) == 0
    capsys.readouterr()
    text = shown(capsys, file)
    assert text.count("made\n") + text.count("made \n") == 4
    assert "The forecast uses 4 runs of this campaign." in text
    assert " spent, each run at most" in text.splitlines()[0]
    document = json.loads(shown(capsys, file, "--json"))
    ahead = sum(row["cost"] for row in document["runs"] if not row["made"])
    assert pytest.approx(document["spent"] + ahead + document["kept"]) == 1200

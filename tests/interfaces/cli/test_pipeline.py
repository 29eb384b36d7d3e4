"""The commands pipeline plan, run, status and stop, as their user sees them."""

import json
import os
import shutil
import sys

import pytest

from leadline.interfaces.cli.main import main
from leadline.interfaces.tables import cell_width

pytest.importorskip("watchfiles")

PIPELINE = f"""
[pipeline]
name = "traps"
folder = "season"

[tiers.edge]
device = "Jetson Nano"
cores = 1
[tiers.cloud]
price = "3.60 USD/h"

[events.images]
files = "incoming/*.jpg"
settle = "100 ms"
[events.drifted]
metric = {{ stage = "label", name = "drift", above = 0.5 }}

[stages.label]
command = "{sys.executable} {{home}}/label.py"
on = "images"
tier = "edge"
[stages.retrain]
command = "{sys.executable} -c 1"
on = "drifted"
tier = ["edge", "cloud"]
deadline = "10 min"
reads = ["incoming"]
"""
LABEL = 'import os; open(os.environ["LEADLINE_PIPELINE_RESULT"], "w").write(\'{"metrics": {"drift": 0.7}}\')'


@pytest.fixture
def file(tmp_path, measures):
    (tmp_path / "label.py").write_text(LABEL)
    (tmp_path / "season" / "incoming").mkdir(parents=True)
    (tmp_path / "season" / "incoming" / "1.jpg").write_bytes(b"x" * 2048)
    path = tmp_path / "traps.toml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def narrow(monkeypatch):
    """Let tables be as wide as a terminal of 80 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))


def answer(capsys, *words):
    assert main(["pipeline", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_pipeline_is_planned_run_shown_and_not_run_twice(file, capsys):
    assert main(["pipeline", "plan", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "traps: 2 stages" in printed
    assert "images → label at edge: the only tier of the stage; its time is unknown" in printed
    document = answer(capsys, "run", str(file), "--until-idle", "3s")
    assert document == {
        "schema": "leadline.pipeline-run/1", "ending": "nothing is left to do", "events": 1, "completed": 2,
        "failed": 0, "left": 0,
    }  # fmt: skip
    plan = answer(capsys, "plan", str(file))
    assert plan["schema"] == "leadline.pipeline-plan/1"
    label, retrain = plan["stages"]
    assert label["forecast"]["energy_j"] == pytest.approx(10 * label["forecast"]["elapsed_s"]["point"])
    assert label["forecast"]["cost_usd"] is None
    assert (retrain["tier"], retrain["reads_bytes"]) == ("edge", 2048)
    assert retrain["reason"] == "the cheapest that meets the deadline of 10m 00s"
    shown = answer(capsys, "status", str(file))
    assert shown["schema"] == "leadline.pipeline-status/1"
    assert [event["events"] for event in shown["events"]] == [1, 1]
    assert [stage["counts"]["events_done"] for stage in shown["stages"]] == [1, 1]
    assert main(["pipeline", "run", str(file), "--until-idle", "1s"]) == 0
    assert capsys.readouterr().out == "0 new events, 0 runs completed\n"
    assert main(["pipeline", "stop", str(file)]) == 0
    assert capsys.readouterr().err == "pipeline 'traps' is not running\n"


@pytest.mark.usefixtures("narrow")
def test_tables_fit_80_columns(file, capsys):
    assert main(["pipeline", "run", str(file), "--until-idle", "2s"]) == 0
    for verb in ("plan", "status"):
        assert main(["pipeline", verb, str(file)]) == 0
        lines = capsys.readouterr().out.splitlines()
        tables = [line for line in lines if "→" not in line and "season" not in line]
        assert max(map(cell_width, tables)) <= 80, lines


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["plan", "nothing.toml"], 2, "nothing.toml cannot be read"),
        (["run", "FILE", "--until-idle", "soon"], 2, "'soon' is not a duration"),
        (["status", "FILE"], 2, "pipeline 'traps' was never run: start it with leadline pipeline run"),
        (["stop", "FILE"], 2, "pipeline 'traps' was never run"),
        (["plan"], 2, "missing argument"),
    ],
)
def test_bad_input_is_one_sentence(file, capsys, words, code, reason):
    assert main(["pipeline", *(str(file) if word == "FILE" else word for word in words)]) == code
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert "Traceback" not in error

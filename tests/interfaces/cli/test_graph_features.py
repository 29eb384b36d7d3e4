"""``leadline train --graphs``: what the op graphs of real scripts say before they run, learned from and asked about."""

import itertools
import json
import sys

import pytest

from leadline.app import settings
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run
from leadline.history.sqlite import SqliteHistory
from leadline.interfaces.cli.main import main

pytest.importorskip("sklearn")
pytest.importorskip("torch")

SCRIPT = """
import sys, torch
width, steps = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).mean().backward()
    optimizer.step()
"""


pytestmark = pytest.mark.usefixtures("forked_traces")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def remember(folder, words=("train.py",), **parameters):
    store = SqliteHistory(settings.history_path())
    for number, (width, steps) in enumerate(itertools.product((16, 32, 64, 128), (20, 40))):
        store.add(Run(
            f"net{number:04d}", JobSpec("net", (sys.executable, *words, str(width), str(steps)), ResourceSpec(),
                                        workdir=str(folder)),
            JobState.COMPLETED, f"2026-01-01T00:00:{number:02d}",
            measured={"elapsed_s": Measurement(1 + 1e-3 * width * steps, "s", "test")},
            parameters={"width": width, "steps": steps, **parameters},
        ))  # fmt: skip


def test_graph_features_are_used_for_training_and_for_questions(folder, capsys):
    remember(folder)
    model = folder / "net.npz"
    assert main(["train", "net", "--graphs", "--to", str(model), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    graph = {one["name"]: one for one in card["features"] if one["role"] == "graph"}
    assert {"graph_flops", "graph_bytes", "graph_kernels", "graph_parameters", "graph_peak_bytes"} <= set(graph)
    assert (graph["graph_parameters"]["low"], graph["graph_parameters"]["high"]) == (16 * 10 + 1, 128 * 10 + 1)
    assert "--graphs" in card["reproduce"]
    traced = folder / "data" / "traces"
    before = len(list(traced.iterdir()))
    asked = ["--set", "width=100", "--set", "steps=30"]
    assert main(["estimate", str(model), *asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 2 < said["elapsed_s"]["point"] < 8
    assert not [name for name in said["parameters"] if name.startswith("graph_")]
    assert before + 1 == len(list(traced.iterdir()))
    assert main(["estimate", str(model), "--set", "width=64", "--set", "steps=20"]) == 0
    assert before + 1 == len(list(traced.iterdir()))  # a run's own command, traced before
    (folder / "train.py").unlink()
    assert main(["estimate", str(model), *asked]) == 2
    assert "train.py 100 30: 'train.py' cannot be traced: there is no such file" in capsys.readouterr().err


def test_a_table_has_no_commands_to_trace(folder, capsys):
    (folder / "runs.csv").write_text("width,elapsed_s\n1,2\n")
    assert main(["train", "runs.csv", "--graphs"]) == 2
    assert "the table runs.csv has none" in capsys.readouterr().err


def test_a_script_that_is_gone_is_named(folder, capsys):
    remember(folder, ("other.py",))
    assert main(["train", "net", "--graphs"]) == 2
    assert "cannot trace " in (said := capsys.readouterr().err)
    assert "there is no such file; check the path" in said


def test_a_parameter_that_no_command_shows_could_not_be_traced_later(folder, capsys):
    remember(folder, seed=7)
    assert main(["train", "net", "--graphs"]) == 2
    assert "have no common command" in capsys.readouterr().err

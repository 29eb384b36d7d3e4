"""``leadline train`` and ``leadline model``: from a table or the history to a model, and every refusal a sentence."""

import json
import random

import pytest

from leadline.app import settings
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.runs import Measurement, Run, Scale
from leadline.history.sqlite import SqliteHistory
from leadline.interfaces.cli.main import main

pytest.importorskip("sklearn")


def rows(count=24):
    draw = random.Random(5)  # noqa: S311 - a test must repeat
    for number in range(count):
        full = number % 4 == 0
        epochs = draw.randint(20, 40) if full else draw.randint(1, 5)
        width = draw.choice((64, 128, 256))
        yield "FS" if full else "SD", epochs, width, (1 + epochs * width / 200) * draw.uniform(0.98, 1.02)


@pytest.fixture
def table(tmp_path):
    lines = [f"{scale},{epochs},{width},{elapsed:.4f}" for scale, epochs, width, elapsed in rows()]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(["scale,epochs,width,elapsed_s", *lines]) + "\n")
    return path


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "160")


def remember(name="net"):
    store = SqliteHistory(settings.history_path())
    for number, (scale, epochs, width, elapsed) in enumerate(rows()):
        store.add(Run(
            f"{name}{number:04d}", JobSpec("job", ("net", "--epochs", str(epochs), f"--width={width}"), ResourceSpec()),
            JobState.COMPLETED, f"2026-01-01T00:00:{number:02d}", scale=Scale(scale),
            measured={"elapsed_s": Measurement(elapsed, "s", "test")},
            parameters={"epochs": epochs, "width": width}, tags={"campaign": name},
        ))  # fmt: skip


def test_a_table_becomes_a_model_a_card_and_plots(table, tmp_path, capsys):
    to, plots = tmp_path / "made" / "net.npz", tmp_path / "plots"
    assert main(["train", str(table), "--to", str(to), "--plots", str(plots)]) == 0
    printed = capsys.readouterr().out
    assert "runs: elapsed_s" in printed
    assert sum(line.startswith("* ") for line in printed.splitlines()) == 1
    assert "scaling_law on SD" in printed
    assert "boosting on SD" in printed
    assert "chosen by policy mape: " in printed
    assert f"model  {to}" in printed
    assert {"net.npz", "net.md"} == {one.name for one in to.parent.iterdir()}
    names = {f"runs-elapsed_s-{kind}.{form}" for kind in ("predicted", "error") for form in ("png", "svg")}
    assert names <= {one.name for one in plots.iterdir()}
    assert all(one.stat().st_size > 5000 for one in plots.iterdir())
    assert main(["model", "show", str(to)]) == 0
    assert to.with_suffix(".md").read_text() == capsys.readouterr().out
    assert main(["model", "show", str(to), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["application"]) == ("leadline.model/1", "runs")


@pytest.mark.parametrize("place", ["file/net.npz", f"{'w' * 300}.npz"], ids=["in a file", "long"])
def test_a_place_that_cannot_be_written_is_refused_before_the_training(table, tmp_path, monkeypatch, capsys, place):
    monkeypatch.setattr("leadline.training.build.build_model", lambda *_, **__: pytest.fail("it trained"))
    (tmp_path / "file").write_text("mine")
    assert main(["train", str(table), "--to", str(tmp_path / place)]) == 1
    assert "): name another place with --to" in capsys.readouterr().err


def test_a_campaign_of_the_history_is_trained_by_its_name_and_kept_with_the_users_models(tmp_path, capsys):
    remember()
    assert main(["train", "net", "--policy", "wtm", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert str(tmp_path / "data" / "models" / "net.npz") == document["model"]
    assert document["command"] == ["net", "--epochs", "{epochs}", "--width={width}"]
    assert document["reproduce"] == "leadline train net --policy wtm --seed 0"
    assert document["targets"][0]["scale_features"] == ["epochs"]
    assert main(["model", "show", "net"]) == 0
    assert "# Model of net" in capsys.readouterr().out
    (tmp_path / "data" / "models" / "broken.npz").write_text("no model")
    assert main(["model", "list"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split()[:4] == ["net", "net", "elapsed_s", "24"]
    assert "broken.npz is no model of Leadline" in printed.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nte"], "unknown campaign 'nte': did you mean 'net'?"),
        ([], "there are runs of 2 applications"),
        (["net", "--policy", "wmt"], "did you mean 'wtm'"),
        (["net", "--target", "joules"], "joules was not measured in any of the 24 runs"),
        (["net", "--scale", "depth"], "no run has a parameter 'depth'"),
        (["net", "--categories", "epoch"], "unknown feature 'epoch': did you mean 'epochs'"),
        (["absent.csv"], "No such file"),
        (["{table}", "--target", "watts"], "has no column 'watts'"),
        (["{table}", "--without", "depth"], "has no column 'depth' to leave out"),
    ],
)
def test_impossible_training_is_refused_in_one_sentence(words, why, table, capsys):
    remember()
    remember("fft")
    assert main(["train", *(word.format(table=table) for word in words)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert why in printed.err
    assert len(printed.err.splitlines()) == 1


def test_without_models_the_list_shows_how_to_train_one(capsys):
    assert main(["model", "list"]) == 0
    assert "train one with leadline train CAMPAIGN" in capsys.readouterr().err


def test_an_empty_history_shows_how_to_add_runs(capsys):
    assert main(["train"]) == 2
    assert "there are no runs to learn from" in capsys.readouterr().err


def test_a_file_that_is_no_model_is_one_sentence(table, capsys):
    assert main(["model", "show", str(table)]) == 2
    assert "is no model of Leadline" in capsys.readouterr().err

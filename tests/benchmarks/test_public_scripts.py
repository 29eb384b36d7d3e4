"""The list of public scripts is complete, and an answer is judged by its facts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.public_scripts.__main__ import fetch, run_counter
from benchmarks.public_scripts.corpus import PublicScript, Repository, public_scripts
from benchmarks.public_scripts.recipes import RECIPES
from benchmarks.public_scripts.run import FALSE, MARKED, REFUSED, RIGHT, SILENT, UNKNOWN, judge, run, trace_script
from leadline.core.errors import InvalidInput
from leadline.core.graph import LoopFacts, Op, OpGraph, OpKind, Stage, TracedJob

TRAIN = """
import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 2).to(device)
frozen = torch.nn.Linear(2, 1).requires_grad_(False).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.zeros(40, 4), torch.zeros(40, dtype=torch.long))
for epoch in range(3):
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def data(tmp_path):
    """A folder of data whose environment is this Python, and a mirror with one repository at one commit."""
    source = tmp_path / "mirrors" / "someone+project"
    source.mkdir(parents=True)
    (source / "train.py").write_text(TRAIN)
    names = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    for words in (("init",), ("add", "."), (*names, "commit", "-m", "first")):
        subprocess.run(["git", *words], cwd=source, check=True, capture_output=True)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "venv").symlink_to(sys.prefix)
    return folder


@pytest.fixture
def script(data):
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=data.parent / "mirrors" / "someone+project", capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    repository = Repository("someone/project", done.stdout.strip(), "MIT")
    return PublicScript(
        "example", repository, "basics", "python train.py", steps=15, epochs=3, batch=8, links=("in=x",)
    )


def _job(steps=5, epochs=3.0, batch=8, parameters=10, flops=100.0, notes=()):
    op = Op("aten.mm", OpKind.GEMM, Stage.FORWARD, "float32", flops, 0, 0)
    loop = LoopFacts(batch=batch, steps_per_epoch=steps, epochs=epochs)
    return TracedJob(OpGraph((op,), parameters=parameters), loop, notes=notes)


@pytest.fixture
def counted(script):
    script.__dict__["counted"] = {"parameters": 8, "frozen": 2, "flops": 98}
    return script


def test_the_list_has_a_hundred_scripts_of_twenty_five_repositories_and_names_only_what_exists():
    scripts = public_scripts()
    assert len(scripts) >= 100
    assert len({script.repository.name for script in scripts}) >= 25
    assert len({script.name for script in scripts}) == len(scripts)
    assert {recipe for script in scripts for recipe in script.recipes} <= set(RECIPES)
    assert all(len(script.repository.commit) == 40 and script.repository.license for script in scripts)


def test_a_repository_is_checked_out_at_its_commit_and_its_data_are_linked(script, data):
    assert fetch([script], data, data.parent / "mirrors") == 0
    assert (script.cwd(data) / "train.py").read_text() == TRAIN
    assert (script.cwd(data) / "in").readlink() == data.absolute() / "data" / "x"


def test_a_missing_environment_is_named_with_its_command_or_made(script, data, capsys):
    script.__dict__.update(venv="other", packages=("pip",))
    assert fetch([script], data, data.parent / "mirrors") == 0
    assert f"-m venv {data}/other && {data}/other/bin/pip install pip" in capsys.readouterr().out
    assert fetch([script], data, data.parent / "mirrors", install=True) == 0
    assert (data / "other" / "bin" / "python").exists()


def test_a_commit_that_does_not_exist_fails_with_the_repository_named(script, data, capsys):
    script = PublicScript("x", Repository("someone/project", "0" * 40, "MIT"), "basics", "python train.py")
    assert fetch([script], data, data.parent / "mirrors") == 1
    assert "not fetched: someone/project" in capsys.readouterr().err


def test_a_real_run_counts_weights_and_operations(script, data):
    fetch([script], data, data.parent / "mirrors")
    counted = run_counter(script, data, steps=2)
    assert (counted["parameters"], counted["frozen"]) == (10, 3)
    # forward, and the gradient of the weights: 2 × 8 × 4 × 2 operations each
    assert counted["flops"] == [256, 256]


def test_a_whole_real_run_counts_every_step(script, data):
    fetch([script], data, data.parent / "mirrors")
    assert run_counter(script, data, steps=0)["steps"] == 15


def test_a_traced_script_is_compared_with_its_facts(script, data):
    fetch([script], data, data.parent / "mirrors")
    detail = trace_script(script, data)
    assert (detail["outcome"], detail["wrong"], detail["steps"]) == (RIGHT, [], 15)


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({}, RIGHT),
        ({"flops": 104.0}, SILENT),
        ({"parameters": 11}, SILENT),
        ({"steps": 6}, SILENT),
        ({"steps": 6, "notes": ("6 steps are read from the loop",)}, SILENT),
        ({"steps": 6, "notes": ("assuming one phase of two",)}, MARKED),
        ({"epochs": None}, UNKNOWN),
        ({"batch": 4}, SILENT),
    ],
)
def test_a_wrong_fact_without_a_warning_is_silently_wrong(counted, facts, outcome):
    assert judge(counted, _job(**facts))["outcome"] == outcome


@pytest.mark.parametrize(("word", "outcome"), [("no_such_module", REFUSED), ("CUDA", FALSE), ("", FALSE)])
def test_a_refusal_counts_only_with_the_true_reason(script, data, word, outcome):
    fetch([script], data, data.parent / "mirrors")
    (script.cwd(data) / "train.py").write_text("import no_such_module\n")
    script = PublicScript("example", script.repository, "basics", "python train.py", refused=word)
    assert trace_script(script, data)["outcome"] == outcome


def test_an_answer_to_a_script_that_cannot_run_is_silently_wrong(script):
    refused = PublicScript("x", script.repository, "basics", "python train.py", refused="mpi4py")
    assert judge(refused, _job())["outcome"] == SILENT


def test_the_bench_without_its_data_says_how_to_get_them(tmp_path):
    with pytest.raises(InvalidInput, match="public_scripts fetch"):
        run(data=tmp_path)


def test_recipes_write_data_sets_of_the_real_size(tmp_path):
    RECIPES["mnist"](tmp_path)
    labels = (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").read_bytes()
    assert len(labels) == 8 + 60_000
    RECIPES["tokens"](tmp_path)
    assert (tmp_path / "tokens" / "shakespeare_char" / "train.bin").stat().st_size == 2 * 1_000_000


def test_every_committed_count_belongs_to_a_script():
    counts = json.loads((Path(run.__code__.co_filename).parent / "counts.json").read_text())
    assert set(counts) <= {script.name for script in public_scripts()}

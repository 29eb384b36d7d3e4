"""What people mistype: one sentence that names the value, the reason and the fix; the right code; nothing written."""

import json
import os
import sys

import pytest

from leadline.app.composition import toolbox
from leadline.interfaces.cli.main import main

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 256,
}  # fmt: skip
NOT_UTF8 = b'model = "caf\xe9.json"\n'
SHAPE = {".py": ("--input", "4x10")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with one good configuration and one good function; nothing may appear beside them."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "net.py").write_text("import torch\ndef build(): return torch.nn.Linear(10, 5)\n")
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    toolbox.cache_clear()
    yield tmp_path
    toolbox.cache_clear()
    assert not (tmp_path / "data").exists()


def refused(capsys, words, code=2):
    """Run a command line that must be refused, and return its sentence."""
    assert code == main(words)
    printed = capsys.readouterr()
    assert printed.out == ""
    # A trace may take long enough for a status line.
    sentences = [line for line in printed.err.splitlines() if not line.endswith(" …")]
    assert len(sentences) == 1, printed.err
    assert sentences[0].startswith(f"leadline {words[0]}: ")
    return sentences[0]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("job.toml", b"batch = [\n1,\n", "job.toml is not valid TOML: Invalid value (at line 2"),
        ("job.toml", b"", 'job.toml must have either model = "…" or command = "…"'),
        ("job.toml", b'model = "config.json"\nbacth = 4\n', "line 2: there is no key 'bacth': did you mean 'batch'"),
        ("job.toml", b'model = "config.json"\nbatch = "four"\n', "line 2: batch is 'four', but it must be a whole"),
        ("job.toml", b'model = "config.json"\nbatch = 1e30\n', "line 2: batch is 1e+30, but it must be a whole number"),
        ("job.toml", b'model = "config.json"\nbatch = 0\n', "--batch is 0, but it must be at least 1"),
        ("job.toml", b'model = "gone.json"\n', "gone.json does not exist: check the path"),
        ("job.toml", NOT_UTF8, "job.toml cannot be read: it is not text in UTF-8; save it in that encoding"),
        ("job.toml", None, "job.toml cannot be read: Is a directory; name a file in it"),
        ("model.json", b"", "model.json is not JSON"),
        ("model.json", b'{"model_type": "llamma"}', "unknown model_type in model.json 'llamma': did you mean 'llama'"),
        ("model.json", json.dumps({**LLAMA, "hidden_size": -4}).encode(), "hidden_size is -4, but it must be"),
        ("model.json", b"[1]", "model.json is not a model configuration"),
        ("model.json", NOT_UTF8, "model.json cannot be read"),
        ("model.json", None, "model.json is a folder: name a file in it"),
        ("folder", None, "folder is a folder without a config.json"),
        ("model.py:build", b"", "unknown function of model.py 'build': it defines nothing"),
        ("model.py:build", b"def build(:\n", "model.py:1 is not valid Python"),
        ("model.py:build", b"\x00", "model.py is not valid Python"),
        ("model.py:build", None, "model.py is a folder"),
    ],
)  # fmt: skip
def test_a_file_that_will_not_do_is_named_with_its_reason(capsys, folder, name, content, says):
    path = folder / name.partition(":")[0]
    path.mkdir() if content is None else path.write_bytes(content)
    assert says in refused(capsys, ["estimate", name, *SHAPE.get(path.suffix, ()), "--on", "A100"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["net.py:biuld", "--input", "4x10"], "unknown function of net.py 'biuld': did you mean 'build'"),
        (["net.py:", "--input", "4x10"], "'' is not a function name: write net.py:function"),
        (["net.py"], "net.py is a script without its interpreter"),
        (["net.py:build"], "needs an input shape"),
        (["net.py:build", "--input", "4xten"], "--input '4xten' is not a shape"),
        (["net.py:build", "--input", "0x10"], "has a dimension of 0"),
        (["net.py:build", "--input", f"{10**30}x10"], "has a dimension of 1e+30: check its digits"),
        (["config.json", "--batch", "0"], "--batch is 0, but it must be at least 1"),
        (["config.json", "--batch", str(10**30)], "--batch is 1e+30, but it can be at most 1,000,000,000"),
        (["config.json", "--epochs", "-1"], "--epochs is -1, but it must be above 0"),
        (["config.json", "--epochs", "nan"], "--epochs is nan, but it must be above 0"),
        (["config.json", "--load-s", "-1"], "--load-s is -1, but it must be 0 or more"),
        (["config.json", "--load-s", "nan"], "--load-s is nan, but it must be 0 or more"),
        (["config.json", "--load-s", "1e9"], "--load-s is 1e+09, but it can be at most 1,000,000: check its digits"),
        (["config.json", "--epochs", "1e30"], "--epochs is 1e+30, but it can be at most"),
        (["config.json", "--bytes-per-sample", "99999PB"], "a sample can hold at most 1 PB"),
        (["config.json", "--gpus", "0"], "--gpus is 0, but it must be at least 1"),
        (["config.json", "--on", "A1000 SXM"], "unknown system or device 'A1000 SXM': did you mean"),
        (
            ["config.json", "--on", "A100 SXM"],
            "ambiguous device 'A100 SXM': write 'A100 SXM4 40GB' or 'A100 SXM4 80GB'",
        ),
        (["config.json", "--on", "RTX 4090 Laptop GPU"], "it is a laptop or Max-Q card"),
        (["config.json", "--on", "a100_3g.20gb"], "it is a slice of a GPU (MIG)"),
        (["config.json", "--on", "A100", "SXM4", "80GB"], "unexpected 'SXM4 80GB' after config.json"),
        ([""], "no workload given"),
    ],
)
def test_a_value_that_will_not_do_is_named_with_the_fix(capsys, words, says):
    assert says in refused(capsys, ["estimate", *words])


def test_a_file_of_functions_made_as_it_runs_is_believed(folder):
    from leadline.app.workloads.model_function import find_framework

    (folder / "star.py").write_text("from net import *\n")
    (folder / "made.py").write_text("globals()['build'] = print\n")
    (folder / "tried.py").write_text("try:\n    from net import build\nexcept ImportError:\n    build = None\n")
    for name in ("star.py", "made.py", "tried.py"):
        find_framework(folder / name, "build")


@pytest.mark.parametrize(
    ("function", "shape", "says"),
    [
        ("def build(): return torch.nn.Linear(10, 5)", "4x11", "the model was given 4x11:float32: check --input"),
        ("def build(): raise ValueError('no weights today')", "4x10", "net.py:2: ValueError: no weights today"),
        ("def build(): return 3", "4x10", "build() returned int: return a torch.nn.Module"),
    ],
)
def test_a_model_that_cannot_be_traced_is_a_failure_and_says_where(capsys, folder, function, shape, says):
    pytest.importorskip("torch")
    (folder / "net.py").write_text(f"import torch\n{function}\n")
    assert says in refused(capsys, ["estimate", "net.py:build", "--input", shape, "--on", "A100"], code=1)


def test_a_batch_that_is_not_the_scripts_own_is_refused_with_where_to_say_it(capsys, folder):
    pytest.importorskip("torch")
    (folder / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 2).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "data = torch.utils.data.TensorDataset(torch.randn(256, 8))\n"
        "for (x,) in torch.utils.data.DataLoader(data, 16):\n"
        "    model(x.cuda()).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    words = ["estimate", "--batch", "32", "--on", "A100", "--", sys.executable, "train.py"]
    assert "--batch is 32, but the script's own is 16: set it in the script's options" in refused(capsys, words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on", "A100"], "A100 is not a system"),
        (["--budget", "5", "--currency", "usd"], "unknown currency 'usd': did you mean 'USD'"),
        (["--budget", "-5"], "--budget is -5, but it must be 0 or more"),
        (["--deadline", "soon"], "'soon' is not a duration"),
        (["--deadline", "12"], "'12' has no unit: write 12h, 12m or 12s"),
        (["--risk", "1"], "--risk is 1, but it must be between 0 and 1"),
        (["--kill", "-1"], "--kill is -1, but it must be 0 or more"),
        (["--waste", "nan"], "--waste is nan, but it must be 0 or more"),
    ],
)
def test_a_limit_that_nothing_can_be_held_against_is_refused(capsys, words, says):
    assert says in refused(capsys, ["recommend", "config.json", "--steps", "10", *words])


@pytest.fixture
def as_nobody():
    """Be a user without rights, for a superuser may read everything."""
    if os.geteuid() == 0:
        pytest.skip("the superuser may read everything, and a user without rights may not read its Python")


@pytest.mark.parametrize("name", ["job.toml", "model.json", "net.py:build"])
def test_a_file_that_may_not_be_read_is_named(capsys, folder, name, request):
    path = folder / name.partition(":")[0]
    path.write_text("")
    path.chmod(0)
    toolbox().catalog.devices()
    request.getfixturevalue("as_nobody")
    assert "Permission denied" in refused(capsys, ["estimate", name, *SHAPE.get(path.suffix, ()), "--on", "A100"])


def test_nothing_is_measured_or_run_whose_outcome_could_not_be_kept(capsys, folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(folder / "file" / "within"))
    toolbox.cache_clear()
    said = refused(capsys, ["calibrate", "--budget", "10"], code=1)
    assert f"{folder}/file is a file): change its permissions, or set LEADLINE_DATA_DIR to another folder" in said
    assert main(["submit", "-y", "--", "touch", "ran"]) == 1
    assert "is a file): change its permissions" in capsys.readouterr().err
    assert not (folder / "ran").exists()
    assert (folder / "file").read_text() == ""

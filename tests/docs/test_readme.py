"""Every command of the README runs unchanged, in a folder with the files that it names."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
CONSOLE = [line for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
COMMANDS = [line.removeprefix("$ ").partition("   #")[0].strip() for line in CONSOLE if line.startswith("$ leadline")]
WORKLOAD = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)[0]

SLOW = {
    "leadline calibrate": "measures this machine for 75 seconds; tests/app/test_calibrate.py runs it for less time",
    "leadline web": "serves until it is ended: tests/interfaces/cli/test_web.py",
    "leadline mcp": "serves until its input ends: tests/interfaces/test_mcp_server.py",
}

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 512,
    "intermediate_size": 1376, "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 4,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip

TRAIN = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,)))
    for epoch in range(options.epochs):
        for x, y in DataLoader(data, options.batch_size, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.3f}")
"""


STEPS = """\
workload,batch,seq,precision,step_s
config.json,4,1024,bf16,0.0161
config.json,8,1024,bf16,0.0279
config.json,12,1024,bf16,0.0401
config.json,16,1024,bf16,0.0522
config.json,24,1024,bf16,0.0766
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "steps.csv").write_text(STEPS, encoding="utf-8")
    (tmp_path / "job.toml").write_text(WORKLOAD, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_succeeds_and_prints_something(command, folder):
    if command in SLOW:
        pytest.skip(SLOW[command])
    pytest.importorskip("torch")
    words = shlex.split(command)[1:]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # this Python has torch
    python_path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "leadline", *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "LEADLINE_DATA_DIR": str(folder / "data"), "HOME": str(folder), "PATH": path,
             "PYTHONPATH": python_path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() or done.stderr.strip()


def test_the_readme_starts_with_two_commands_that_work_in_a_fresh_clone():
    first, second = [line for line in CONSOLE if line.startswith("$")][:2]
    assert first.startswith("$ python3 dev demo")
    assert second.startswith("$ python3 dev test")


def test_the_changelog_names_every_verb_of_the_readme():
    changes = Path(__file__).parents[2].joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    verbs = {command.split()[1] for command in COMMANDS}
    assert {verb for verb in verbs if f"leadline {verb}" in changes} == verbs

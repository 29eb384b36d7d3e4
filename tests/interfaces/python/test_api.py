"""The public Python API: the same answers as the command line, as typed objects."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import leadline
from leadline.app.workloads.options import WorkloadOptions
from leadline.core.jobs import JobState
from leadline.interfaces.cli import estimate as estimate_command
from leadline.interfaces.cli.output import run_command
from leadline.interfaces.python.verbs import WorkloadKeywords

A100, H100 = "A100 SXM4 80GB", "H100 SXM5 80GB"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_an_estimate_is_the_document_that_the_command_prints(config, capsys):
    answer = leadline.estimate(config, batch=4, seq=128, on=A100)
    options = ["--batch", "4", "--seq", "128", "--on", A100, "--json"]
    assert run_command(estimate_command.app, "estimate", [str(config), *options]) == 0

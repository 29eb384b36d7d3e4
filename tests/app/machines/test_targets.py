"""Targets of a job: names after ``--on``, and places without the GPUs that the job asks for."""

import json

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.machines.targets import resolve_targets
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.hardware import DeviceKind
from leadline.interfaces.cli.main import main

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 1000, "n_positions": 128}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
    toolbox.cache_clear()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    yield str(path)
    toolbox.cache_clear()


def test_gpus_that_are_asked_for_leave_no_place_without_gpus():
    catalog = toolbox().catalog
    needing = resolve_targets(catalog, (), 8, need_gpus=True)
    assert all(target.device.kind is not DeviceKind.CPU for target in needing.targets)
    without = [row for row in needing.unusable if row.kind == "no-gpus"]
    assert {row.reason for row in without} == {"it has no GPUs, and the job asks for 8"}
    free = resolve_targets(catalog, (), 8)
    assert sum(target.device.kind is DeviceKind.CPU for target in free.targets) > 10


def test_only_the_option_asks_for_gpus(config):
    assert not read_workload([config]).needs_gpus
    assert read_workload([config], WorkloadOptions(gpus=1)).needs_gpus


def test_a_recommendation_for_gpus_rejects_each_cpu_partition_with_the_reason(config, capsys):
    words = [
        "recommend",
        config,
        "--steps",
        "100",
        "--precision",
        "fp32",
        "--gpus",
        "2",
        "--on",
        "Pitzer",
        "--json",
        "--deadline",
        "24h",
    ]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert all(option["resources"]["gpus_per_node"] for option in answer["options"])
    refused = [rejection for rejection in answer["rejections"] if rejection["kind"] == "no-gpus"]
    assert "it has no GPUs, and the job asks for 2" in {rejection["reason"] for rejection in refused}


def test_a_named_cpu_place_is_refused_where_gpus_are_asked_for(config):
    with pytest.raises(InvalidInput, match=r"Expanse:compute.*it has no GPUs, and the job asks for 8"):
        resolve_targets(toolbox().catalog, ["Expanse:compute"], 8, need_gpus=True)
    with pytest.raises(InvalidInput, match=r"is a CPU, and --gpus asks for 8: name a GPU"):
        resolve_targets(toolbox().catalog, ["EPYC 7742"], 8, need_gpus=True)


def test_nodes_of_an_unknown_number_of_gpus_are_usual_ones_and_the_output_names_them(config, tmp_path):
    site = tmp_path / "data" / "catalog" / "sites" / "lab.toml"
    site.parent.mkdir(parents=True)
    site.write_text(SITE)
    toolbox.cache_clear()
    work = read_workload([config], WorkloadOptions(gpus=16, batch=1, precision="fp16"))
    (answer,) = estimate(work, toolbox(), on=["Bench"]).estimates
    assert answer.target.nodes == 2
    assert "assumed 2 nodes of 8 GPUs: name a system with known nodes after --on" in answer.basis.reasons


SITE = """
site = "LAB"
name = "Our laboratory"

[[systems]]
name = "Bench"
kind = "cluster"
status = "production"
scheduler = "slurm"
confidence = "found"
source = "the machine itself"
as_of = "2026"
partitions = [{ name = "gpu", node = "box" }]

[systems.nodes.box]
count = 4
device = "A100 SXM4 80GB"
interconnect = "IB HDR 200 Gb/s"
"""

"""Targets of a job: names after ``--on``, and places without the GPUs that the job asks for."""

import itertools
import json
from dataclasses import replace

import pytest

from leadline.app.composition import toolbox
from leadline.app.estimate.estimate import estimate
from leadline.app.machines.targets import resolve_targets
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.hardware import DeviceKind
from leadline.core.workload import ModelKind, ModelSource, Workload
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
    work = Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"), gpus=8)
    needing = resolve_targets(catalog, (), replace(work, needs_gpus=True))
    assert all(target.device.kind is not DeviceKind.CPU for target in needing.targets)
    without = [row for row in needing.unusable if row.kind == "no-gpus"]
    assert {row.reason for row in without} == {"it has no GPUs, and the job asks for 8"}
    free = resolve_targets(catalog, (), work)
    assert sum(target.device.kind is DeviceKind.CPU for target in free.targets) > 10


def test_the_option_asks_for_gpus(config):
    assert not read_workload([config]).needs_gpus
    assert read_workload([config], WorkloadOptions(gpus=1)).needs_gpus


LAUNCHERS = [
    ("torchrun --nproc_per_node=8", 8), ("torchrun --nnodes 2 --nproc-per-node 4", 8),
    ("torchrun --nproc_per_node=gpu", 1), ("mpirun -np 8 -N 4 --gpus-per-task 1 python", 8),
    ("python -m torch.distributed.run --nproc_per_node 4", 4), ("accelerate launch --num_processes 8", 8),
    ("accelerate launch --multi_gpu --num_machines 2 --num_processes 8", 8), ("accelerate launch --multi_gpu", 1),
    ("deepspeed --num_gpus=8", 8), ("deepspeed --num_nodes 2 --num_gpus 4", 8), ("deepspeed", 1),
    ("srun --gpus=8 python", 8), ("srun -G 8 -N 2 python", 8), ("srun -G8 python", 8), ("srun --gpus a100:8 python", 8),
    ("srun -N2 --gpus-per-node=4 python", 8), ("srun -N 2 --gres=gpu:a100:4 python", 8), ("srun --gres gpu python", 1),
    ("srun -n 8 --gpus-per-task=1 python", 8), ("srun -N 2 --ntasks-per-node=4 --gpus-per-task 1 python", 8),
    ("srun -N2 --gpus-per-node=4 torchrun --nproc_per_node=4 --nnodes=2", 8),
    ("srun -n 2 torchrun --nproc_per_node=8", 8),
]  # fmt: skip
SILENT = [
    "python", "torchrun", "torchrun --standalone", "torchrun --nproc_per_node=auto", "torchrun --nproc_per_node=cpu",
    "accelerate launch", "accelerate launch --cpu --num_processes 8", "srun -n 8 python", "mpirun -np 8 python",
    "srun --gres=nvme:1 python",
]  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("launcher", "gpus"), LAUNCHERS)
def test_a_launcher_asks_for_the_gpus_of_its_processes(launcher, gpus, order):
    settings = ["--lr", "--gpus-of-mine", "--cpu"]  # the script's own options, which say nothing
    work = read_workload([*launcher.split(), "train.py", *(settings[place] for place in order)])
    assert (work.gpus, work.needs_gpus) == (gpus, True)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("launcher", SILENT)
def test_a_launcher_that_does_not_name_gpus_asks_for_none(launcher, order):
    settings = ["--gpus=8", "--nproc_per_node=8", "--multi_gpu"]
    work = read_workload([*launcher.split(), "train.py", *(settings[place] for place in order)])
    assert not work.needs_gpus


@pytest.mark.parametrize(
    "launcher", ["torchrun --nproc_per_node=2", "accelerate launch --num_processes 2", "deepspeed --num_gpus 2"]
)
def test_launched_gpus_rank_no_cpu_node_but_a_cpu_named_by_itself_runs_the_processes(launcher):
    work = read_workload([*launcher.split(), "train.py"])
    ranked = resolve_targets(toolbox().catalog, (), work).targets
    assert ranked
    assert all(target.device.kind is not DeviceKind.CPU for target in ranked)
    (named,) = resolve_targets(toolbox().catalog, ["EPYC 7742"], work).targets
    assert named.device.kind is DeviceKind.CPU


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
    work = read_workload([config], WorkloadOptions(gpus=8))
    with pytest.raises(InvalidInput, match=r"Expanse:compute.*it has no GPUs, and the job asks for 8"):
        resolve_targets(toolbox().catalog, ["Expanse:compute"], work)
    with pytest.raises(InvalidInput, match=r"is a CPU, and --gpus asks for 8: name a GPU"):
        resolve_targets(toolbox().catalog, ["EPYC 7742"], work)


def test_nodes_of_an_unknown_number_of_gpus_are_usual_ones_and_the_output_names_them(config, tmp_path):
    site = tmp_path / "data" / "catalog" / "sites" / "lab.toml"
    site.parent.mkdir(parents=True)
    site.write_text(SITE)
    toolbox.cache_clear()
    work = read_workload([config], WorkloadOptions(gpus=16, batch=1, precision="fp16"))
    (answer,) = estimate(work, toolbox(), on=["Bench"]).estimates
    assert answer.target.nodes == 2
    assert "assumed 2 nodes of 8 GPUs: name a system with known nodes after --on" in answer.basis.reasons


def test_the_option_limits_the_power_of_the_gpus_and_the_output_says_so(config, capsys):
    asked = {"batch": 4096, "precision": "bf16", "phase": "inference"}
    work, limited = (read_workload([config], WorkloadOptions(**asked, power_limit=watts)) for watts in (None, "200W"))
    (full,), (slow,) = (estimate(each, toolbox(), on=["A100 SXM4 80GB"]).estimates for each in (work, limited))
    assert slow.step_s.point > 1.1 * full.step_s.point
    assert slow.step_s.high / slow.step_s.low > full.step_s.high / full.step_s.low
    assert [reason for reason in slow.basis.reasons if reason.startswith("power limit 200 W of 400 W")]
    assert slow.gpu_memory_bytes == full.gpu_memory_bytes
    assert main(["estimate", config, "--on", "A100 SXM4 80GB", "--power-limit", "0.2kW"]) == 0
    assert "power limit 200 W of 400 W" in " ".join(capsys.readouterr().out.split())
    assert main(["fit", config, "--on", "A100 SXM4 80GB", "--power-limit", "450W"]) == 2
    assert "450 W is not possible on A100 SXM4 80GB: give watts for each GPU, from 80 to 400" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["300", "300 Wh", "0W", "-5W", "watts", "1e9W", "9999999W"])
def test_a_power_limit_is_watts_with_their_unit(config, text):
    with pytest.raises(InvalidInput, match=r"is no power limit: write the watts of each GPU, as in 300W"):
        read_workload([config], WorkloadOptions(power_limit=text))


def test_a_site_that_limits_its_gpus_says_so_and_the_option_wins(config, tmp_path, capsys):
    site = tmp_path / "data" / "catalog" / "sites" / "lab.toml"
    site.parent.mkdir(parents=True)
    site.write_text(f"{SITE}power_limit_w = 300\n")
    toolbox.cache_clear()

    def limit_w(power_limit=None):
        work = read_workload([config], WorkloadOptions(power_limit=power_limit))
        (target,) = resolve_targets(toolbox().catalog, ["Bench"], work).targets
        return target.device.power_limit_w

    assert (limit_w(), limit_w("250W"), limit_w("400W")) == (300, 250, None)
    with pytest.raises(InvalidInput, match="cannot estimate Bench: a power limit of 500 W is not possible"):
        limit_w("500W")
    assert main(["systems", "show", "Bench"]) == 0
    assert "power limit of box nodes: 300 W a GPU" in capsys.readouterr().out


def test_partitions_whose_gpus_do_not_accept_the_limit_are_left_out_with_the_reason(config):
    work = read_workload([config], WorkloadOptions(gpus=1, power_limit="400W"))
    found = resolve_targets(toolbox().catalog, (), work)
    assert {target.device.power_limit_w for target in found.targets} == {400, None}
    refused = [row.reason for row in found.unusable if row.kind == "power-limit"]
    assert any("400 W is not possible on V100" in reason for reason in refused)


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

"""Readers of files that users write: workloads, campaigns, the catalog, sequence lengths, tables of runs and steps."""

import gzip
import io
import json
from contextlib import chdir
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.trust.mutations import Form
from benchmarks.trust.readers import Reader, texts
from leadline.app.estimate.adapt import measured_steps
from leadline.app.estimate.queue_waits import read_accounting_file
from leadline.app.machines.remotes import read_remotes
from leadline.app.machines.systems import check_catalog
from leadline.app.workloads.adapters import build_adapters
from leadline.app.workloads.options import WorkloadOptions, read_lengths
from leadline.app.workloads.read import read_workload
from leadline.campaigns.spec import read_campaign
from leadline.catalog.read import TomlCatalog
from leadline.core.workload import ModelKind, Parallelism, Phase
from leadline.training.measurements import measured_records, read_measurements
from leadline.training.tables import read_tables
from tests.training.test_measurements import HEADER, OK, OOM

COMMAND = """\
command = "python train.py --lr {lr} --epochs 3"
name = "job"
epochs = 2.5
workers = 4
bytes_per_sample = "110KB"
held_in_memory = true
[parameters]
lr = 0.1
"""
PEFT = """\
{"peft_type": "LORA", "r": 8, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"],
 "modules_to_save": ["lm_head"], "rank_pattern": {}, "loftq_config": {"loftq_bits": 4}}
"""
LAUNCHED = """\
command = ["torchrun", "--nproc-per-node", "4", "train.py"]
samples = 5000
batch = 8
gpus = 4
"""
ADAPTED = """\
model = "config.json"
batch = 8
seq = 128
precision = "bf16"
optimizer = "adamw"
steps = 100
phase = "training"
sharding = "full"
gpus = 8
accumulate = 2
lora = 8
quantize = "4bit"
"""
INFERENCE = """\
model = "net.onnx"
phase = "inference"
input = ["8x3x224x224", "8x16:int64"]
"""
CAMPAIGN = """\
command = "python train.py --epochs {epochs} --width {width} --set {data}"
name = "net"
budget = "2h"
repeats = 2
limit = "30m"
seed = 3
scaled_down_runs = 20
full_scale_runs = 4
first_run = "10s"
[parameters.epochs]
scaled_down = [1, 3]
full_scale = [10, 60]
[parameters.width]
kind = "log-integer"
range = [64, 1024]
[parameters.data]
choices = ["mnist", "cifar10"]
[resources]
cores = [1, 2]
gpus = 0
memory = ["2GiB", "4GiB"]
[prices]
core_hour = 0.003
gpu_hour = 0.09
[job]
setup = "module load python"
environment = { OMP = "{cores}" }
"""
CHOSEN = """\
command = ["run", "{n}"]
[parameters.n]
values = [1, 2, 50]
scaled_down = [1, 2]
full_scale = [50, 50]
"""
DEVICES = """\
[[devices]]
name = "Mystery"
vendor = "nvidia"
kind = "gpu"
confidence = "found"
source = "a data sheet"
memory_gib = 24
memory_gb_per_s = 900
aliases = ["mystery"]
tflops = { float32 = 10, float16 = 20.5 }
"""
SITE = """\
site = "here"
name = "A site"

[[systems]]
name = "reef"
kind = "hpc"
status = "active"
scheduler = "slurm"
confidence = "found"
source = "its pages"
as_of = "2026-01-01"
partitions = [
  { name = "batch", node = "cpu", billing = "su", rules = "plain", max_walltime_h = 24, max_nodes = 4 },
  { name = "gpu", node = "a100", billing = "su", charge_factor = 2.5, qos = "normal" },
]

[systems.nodes.cpu]
cores = 48
memory_gib = 192
count = 10

[systems.nodes.a100]
cores = 64
memory_gib = 512
device = "A100 SXM4 80GB"
gpus = 4

[systems.billing.su]
rule = "core-hours"
currency = "SU"
core_hour = 1.0
gpu_hour = 16.5

[systems.rules.plain]
rejects = ["--mem"]
gpu_option = "--gres=gpu"

[systems.scheduling]
version = "24.05"
max_array_size = 1001
"""
ADDITIONS = '[[systems]]\nname = "reef"\npartitions = [ { name = "batch", qos = "long" } ]\n'
PLAIN_RUNS = """\
id,name,state,scale,epochs,samples,kind,elapsed_s,host_memory_bytes
1,net,COMPLETED,SD,1,1000,a,12.5,1e8
2,net,COMPLETED,FS,20,50000,b,830,4e8
3,net,FAILED,,3,2000,a,,
"""
EXPORTED_RUNS = """\
id,name,state,started_at,system,parameter_epochs,asked_nodes,asked_walltime_s,measured_elapsed_s,node_device
1,net,COMPLETED,2026-01-01T00:00:00,reef,3,1,600,12,A100
2,net,TIMEOUT,2026-01-02,reef,9,1,600,600,
"""
RUNS = (PLAIN_RUNS, "size;memory;elapsed_s\n1;2GiB;3.5\n2;4GiB;7\n", EXPORTED_RUNS)
STEPS = "workload,batch,seq,precision,step_s\nconfig.json,8,128,bf16,0.125\nconfig.json,4,128,bf16,0.08\n"
ACCOUNTING = (
    "1|1767225600|1767225600|1767225700|1767229300|COMPLETED|ann|lab|batch|normal|1|4|billing=4,cpu=4,mem=16G,node=1|60|train\n"
    "2_[1-3%2]|1767225601|1767225601|Unknown|Unknown|PENDING|bob|lab|gpu|normal|1|8|cpu=8,gres/gpu:a100=2,mem=32G|120|sweep\n"
    "3|2026-01-01T00:00:03|2026-01-01T00:00:03|2026-01-01T00:10:00|2026-01-01T00:20:00|FAILED|ann|lab|gpu|normal|2|16|cpu=16|30|a|b\n"
)
REACH = (
    '[systems.reef]\nhost = "me@reef.example.org"\nfolder = "/scratch/me"\npython = "python3"\nscheduler = "slurm"\n'
)


def _array(values: object, dtype: str) -> bytes:
    target = io.BytesIO()
    np.save(target, np.array(values, dtype=dtype))
    return target.getvalue()


def _runs_for_gzip() -> tuple[bytes, ...]:
    return tuple(gzip.compress(text.encode(), mtime=0) for text in RUNS)


def _measured() -> tuple[bytes, ...]:
    rows = (HEADER, OK, OOM)
    return ("".join(json.dumps(row) + "\n" for row in rows).encode(),)


def _beside_models(path: Path) -> Path:
    """Put the files that a workload names next to it."""
    for name in ("config.json", "net.onnx", "train.py"):
        (path.parent / name).touch()
    return path


def _read_catalog(path: Path, kind: str, additions: str = "") -> object:
    """Read a file of the user's catalog as every command does."""
    folder = path.parent / "catalog"
    (folder / kind).mkdir(parents=True, exist_ok=True)
    place = folder / kind / path.name
    place.unlink(missing_ok=True)
    place.symlink_to(path)
    if additions:
        (folder / "additions").mkdir(exist_ok=True)
        (folder / "additions" / path.name).write_text(additions, encoding="utf-8")
    catalog = TomlCatalog(folder)
    return catalog.devices() if kind == "devices" else catalog.systems()


def _read_additions(path: Path) -> object:
    folder = path.parent / "catalog"
    for part in ("sites", "additions"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sites" / path.name).write_text(SITE, encoding="utf-8")
    place = folder / "additions" / path.name
    place.unlink(missing_ok=True)
    place.symlink_to(path)
    return TomlCatalog(folder).systems()


def _read_adapters(path: Path) -> object:
    return build_adapters(WorkloadOptions(peft=str(path)), ModelKind.HF_CONFIG, Phase.TRAINING, Parallelism())


def _read_steps(path: Path) -> object:
    with chdir(_beside_models(path).parent), measured_steps(path, 50) as (steps, _):
        return steps


READERS = (
    Reader(
        "workload file",
        "app",
        "job.toml",
        Form.TOML,
        texts(COMMAND, LAUNCHED, ADAPTED, INFERENCE),
        lambda path: read_workload([str(_beside_models(path))]),
        4,
    ),
    Reader(
        "sequence lengths, numpy",
        "app",
        "lengths.npy",
        Form.ARRAY,
        lambda: (_array([5, 9, 300], "<i8"), _array([1, 2], "<u2")),
        read_lengths,
        3,
    ),
    Reader("sequence lengths, text", "app", "lengths.txt", Form.TEXT, texts("5\n12\n\n300\n"), read_lengths, 1),
    Reader("settings of peft", "app", "adapter_config.json", Form.JSON, texts(PEFT), _read_adapters, 2),
    Reader("campaign file", "campaigns", "campaign.toml", Form.TOML, texts(CAMPAIGN, CHOSEN), read_campaign, 4),
    Reader(
        "catalog of devices",
        "catalog",
        "mine.toml",
        Form.TOML,
        texts(DEVICES),
        partial(_read_catalog, kind="devices"),
        2,
    ),
    Reader("catalog of sites", "catalog", "reef.toml", Form.TOML, texts(SITE), partial(_read_catalog, kind="sites"), 3),
    Reader("catalog additions", "catalog", "reef.toml", Form.TOML, texts(ADDITIONS), _read_additions, 2),
    Reader(
        "checked file of the catalog",
        "catalog",
        "reef.toml",
        Form.TOML,
        texts(SITE, DEVICES, SITE.replace("cores = 48", 'cores = "many"'), DEVICES.replace("gib = 24", "gib = -1")),
        lambda path: check_catalog(TomlCatalog(), path),
        2,
    ),
    Reader("table of runs", "training", "runs.csv", Form.TEXT, texts(*RUNS), read_tables, 3),
    Reader("compressed table of runs", "training", "runs.csv.gz", Form.BINARY, _runs_for_gzip, read_tables, 2),
    Reader(
        "measurements",
        "training",
        "a100.jsonl",
        Form.JSON_LINES,
        _measured,
        lambda path: measured_records(read_measurements(path)),
        3,
    ),
    Reader("measured steps, table", "app", "steps.csv", Form.TEXT, texts(STEPS), _read_steps, 2),
    Reader("measured steps, measurements", "app", "steps.jsonl", Form.JSON_LINES, _measured, _read_steps, 2),
    Reader(
        "job accounting",
        "app",
        "sacct.txt",
        Form.TEXT,
        texts(ACCOUNTING),
        lambda path: read_accounting_file(str(path)),
        3,
    ),
    Reader("remote systems", "app", "reach.toml", Form.TOML, texts(REACH), read_remotes, 1),
)

"""Rows about published training runs on several nodes.

Runs with experts, context parallelism or float8, which no option describes, are left out, and so are runs below a tenth
of the peak.
"""

import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.results import BenchmarkRow, at_least, within
from benchmarks.tables import read_table
from leadline.app.composition import toolbox
from leadline.core.errors import LeadlineError
from leadline.core.estimate import Interval
from leadline.core.graph import TracedJob
from leadline.core.workload import ModelKind, ModelSource, Parallelism, Precision, Recompute, Sharding, Workload
from leadline.graphs.hf_config.expand import expand

DEVICES = {"H100-SXM-80GB": "H100 SXM5 80GB", "A100-SXM-80GB": "A100 SXM4 80GB"}
SHARDINGS = {"ddp": Sharding.NONE, "zero0": Sharding.NONE, "fsdp2": Sharding.FULL, "zero3": Sharding.FULL}
SWEEP, SWEPT_RUNS = "nanotron-playbook", 60  # runs of the largest sweep, drawn at random
SEED = 0

Row = dict[str, object]


def published_runs(data: Path) -> list[BenchmarkRow]:
    """Return coverage of the 90 % interval, and the median ratio, with node size and network unknown."""
    with tempfile.TemporaryDirectory() as folder:
        answers = list(_predictions(data, Path(folder) / "config.json"))
    inside = sum(interval.low <= measured_s <= interval.high for interval, measured_s in answers)
    ratio = statistics.median(interval.point / measured_s for interval, measured_s in answers)
    width = statistics.median(interval.high / interval.low for interval, _ in answers)
    return [
        at_least("published multi-node runs inside the interval", 100 * inside / len(answers), 85.0, "%",
                 n=len(answers), how=f"bf16 and fp16; median width {width:.1f}"),
        within("published multi-node runs, predicted ÷ measured", ratio, (0.67, 1.5), "ratio", n=len(answers)),
    ]  # fmt: skip


def _predictions(data: Path, path: Path) -> Iterator[tuple[Interval, float]]:
    columns = read_table(data, "llm_train_scale")
    rows = [{name: values[i] for name, values in columns.items()} for i in range(len(columns["gpus"]))]
    usable = [row for row in rows if _is_usable(row)]
    swept = [row for row in usable if row["source_id"] == SWEEP]
    random.Random(SEED).shuffle(swept)  # noqa: S311 - a sample
    tools = toolbox()
    jobs: dict[Workload, TracedJob] = {}
    for row in [row for row in usable if row["source_id"] != SWEEP] + swept[:SWEPT_RUNS]:
        path = path.with_name(f"{len(jobs)}.json")
        work = _workload(row, path)
        alone = replace(work, gpus=1, parallelism=Parallelism())
        try:
            job = jobs.setdefault(alone, expand(alone))
            predicted = tools.estimator.estimate(work, job, tools.catalog.device(DEVICES[str(row["device"])])).step_s
        except LeadlineError:
            continue
        if predicted is not None:
            yield predicted, _measured_s(row)


def _is_usable(row: Row) -> bool:
    needed = ("layers", "hidden", "heads", "ffn", "vocab", "seq", "micro_batch", "global_batch")
    if row["status"] != "ok" or row["device"] not in DEVICES or row["precision"] not in ("bf16", "fp16"):
        return False
    if any(not _number(row[name]) > 0 for name in needed) or not _measured_s(row) > 0:
        return False
    if any(_number(row[name]) > 1 for name in ("experts", "cp", "ep")) or _number(row["gpus"]) <= 8:
        return False
    return not (row["source_id"] == SWEEP and not _number(row["mfu_pct"]) >= 10)


def _workload(row: Row, path: Path) -> Workload:
    """Return the run as a workload whose system is unknown."""
    gated = str(row["model"]).casefold().startswith(("llama", "nanotron"))
    sizes = {"hidden_size": "hidden", "intermediate_size": "ffn", "num_hidden_layers": "layers", "vocab_size": "vocab",
             "num_attention_heads": "heads", "max_position_embeddings": "seq"}  # fmt: skip
    config: dict[str, object] = {field: int(_number(row[name])) for field, name in sizes.items()}
    config["model_type"] = "llama" if gated else "gpt_neox"
    if gated and _number(row["kv_heads"]) > 0:
        config["num_key_value_heads"] = int(_number(row["kv_heads"]))
    path.write_text(json.dumps(config), encoding="utf-8")
    gpus, tensor, pipeline, batch = (int(max(_number(row[name]), 1)) for name in ("gpus", "tp", "pp", "micro_batch"))
    copies = gpus // (tensor * pipeline)
    words = str(row["sharding"]).replace(",", " ").split()
    return Workload(
        ModelSource(ModelKind.HF_CONFIG, str(path)), batch=batch, sequence=int(_number(row["seq"])),
        precision=Precision(str(row["precision"])),
        recompute=Recompute.FULL if str(row["recompute"]).startswith("full") else Recompute.NONE,
        accumulation=max(1, round(_number(row["global_batch"]) / (copies * batch))), gpus=gpus,
        parallelism=Parallelism(tensor, pipeline, SHARDINGS.get(words[0] if words else "", Sharding.OPTIMIZER)),
    )  # fmt: skip


def _measured_s(row: Row) -> float:
    """Return the seconds of a step, from its time or from tokens a second."""
    step_s = _number(row["step_time_s"])
    tokens_per_s = _number(row["tokens_per_s_per_gpu"]) * _number(row["gpus"])
    return step_s if step_s > 0 else _number(row["global_batch"]) * _number(row["seq"]) / tokens_per_s


def _number(value: object) -> float:
    """Return a number, NaN for an empty cell."""
    try:
        return float(str(value))
    except ValueError:
        return float("nan")

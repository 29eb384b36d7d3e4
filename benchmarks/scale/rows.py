"""Published training steps on many GPUs as workloads: their layout, framework, network and time."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.scale import bridge_rows
from benchmarks.scale.bridge_rows import BridgeStep
from benchmarks.tables import read_table
from leadline.catalog.read import TomlCatalog
from leadline.core.graph import TracedJob
from leadline.core.hardware import Device
from leadline.core.units import GBIT_BYTES
from leadline.core.workload import (
    Fusion,
    ModelKind,
    ModelSource,
    NetworkRate,
    Overlap,
    Parallelism,
    Precision,
    Recompute,
    Sharding,
    Workload,
)
from leadline.estimators.parallelism.fabric import job_fabric
from leadline.estimators.parallelism.training_step import AttentionKernel, TrainingStep
from leadline.graphs.hf_config.expand import expand
from leadline.training.decoder_steps import make_training_step

PER_NODE = 8
SWEEP = "nanotron"
SLOWEST_SWEPT_MFU = 10.0
"""Percent; more than half of the sweep's runs with pipelines stay below, twice to ten times as slow as others."""


@dataclass(frozen=True, slots=True)
class Framework:
    """What a source's runs have in common: how ops run, what overlaps, the attention, and Gb/s a GPU."""

    source: str
    fusion: Fusion
    overlap: Overlap
    attention: AttentionKernel | None = None
    network_gbit: Mapping[str, float] | None = None
    sequence_parallel: bool = True


NONE, LIBRARY = Fusion.NONE, Fusion.LIBRARY
FRAMEWORKS = {
    "nanotron-playbook": Framework(SWEEP, LIBRARY, Overlap.NONE, AttentionKernel.FLASH2),
    # FlashAttention was not in use; each node has four links of 100 Gb/s for eight GPUs.
    "bigscience-tr11-prequel": Framework(
        "bigscience", LIBRARY, Overlap.NONE, AttentionKernel.WRITTEN, {"A100": 50.0}, sequence_parallel=False
    ),
    "calculon-seqsel-tab5": Framework("megatron", LIBRARY, Overlap.DATA, AttentionKernel.WRITTEN),
    "megatron-readme-2023": Framework("megatron", LIBRARY, Overlap.DATA, AttentionKernel.WRITTEN),
    "nemo-24.07": Framework("nemo", LIBRARY, Overlap.ALL),
    "nemo-longseq-h100": Framework("nemo long", LIBRARY, Overlap.ALL),
    "torchtitan-2024-12": Framework("torchtitan", NONE, Overlap.DATA),
    "torchtitan-2024-docs": Framework("torchtitan", NONE, Overlap.DATA),
    "torchtitan-2025-06-asynctp": Framework("torchtitan", NONE, Overlap.DATA),
}
DEVICES = {
    "H100-SXM-80GB": "H100 SXM5 80GB", "A100-SXM-80GB": "A100 SXM4 80GB", "h100_80gb": "H100 SXM5 80GB",
    "a100_80gb": "A100 SXM4 80GB", "a100_40gb": "A100 SXM4 40GB", "H100-SXM-96GB-HBM2e-500W": "H100 SXM5 96GB",
}  # fmt: skip
MPT_SHAPES = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16), "3b": (32, 2560, 20),
    "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56), "70b": (80, 8192, 64),
}  # fmt: skip
"""Layers, width and heads of llm-foundry's models, by the published configurations."""
MPT_VOCABULARY = 50_368


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """One distinct configuration, with the median time of its runs.

    ``mfu`` is the share of the peak that 6 FLOPs a weight and token, and causal attention, make of that time.
    """

    source: str
    model: str
    workload: Workload
    step: TrainingStep
    elapsed_s: float
    flops: float
    config: Mapping[str, object]

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, in percent of the 16-bit peak."""
        rate = self.flops / self.elapsed_s / self.step.gpus
        return 100 * rate / self.step.device.peak_flops_per_s["bfloat16"]


Cells = Mapping[str, object]


def scale_rows(data: Path) -> list[ScaleRow]:
    """Return the distinct configurations of all published steps on GPUs that name their model, layout and time.

    Raises:
        InvalidInput: the folder lacks a table.
    """
    with tempfile.TemporaryDirectory() as folder:
        reader = _Reader(Path(folder))
        rows = [reader.row(cells) for cells in _cells(data, "llm_train_scale") if _is_usable(cells)]
        rows += [reader.mpt_row(cells) for cells in _cells(data, "llm_foundry_train")]
        summaries = [*bridge_rows.automodel_steps(), *bridge_rows.bridge_steps(data)]
        rows += [reader.bridge_row(step) for step in summaries]
    groups = defaultdict[tuple[object, ...], list[ScaleRow]](list)
    for row in rows:
        groups[row.source, row.model, replace(row.workload, model=ModelSource(ModelKind.HF_CONFIG, "")),
               row.step.device.name, row.step.gpu_network_bytes_per_s].append(row)  # fmt: skip
    return [_median(group) for group in groups.values()]


def _median(group: Sequence[ScaleRow]) -> ScaleRow:
    from dataclasses import replace as copy  # noqa: PLC0415 - the same name for another kind of class

    return copy(group[0], elapsed_s=float(np.median([row.elapsed_s for row in group])))


def _cells(data: Path, table: str) -> Iterator[Cells]:
    columns = read_table(data, table)
    for place in range(len(next(iter(columns.values())))):
        yield {name: values[place] for name, values in columns.items()}


def _number(value: object, default: float = float("nan")) -> float:
    """Return a number, ``default`` for an empty cell."""
    try:
        number = float(str(value))
    except ValueError:
        return default
    return default if np.isnan(number) else number


def _is_usable(cells: Cells) -> bool:
    sizes = [_number(cells[name]) for name in ("layers", "hidden", "ffn", "vocab", "seq", "global_batch")]
    known = cells["status"] == "ok" and cells["device"] in DEVICES and cells["source_id"] in FRAMEWORKS
    width, heads = _number(cells["hidden"]), _number(cells["heads"], 1.0)
    divisible = int(width) % int(heads) == 0 if width > 0 else False
    return known and all(size > 0 for size in sizes) and divisible and "lora" not in str(cells["task"])


class _Reader:
    """Makes rows of cells; configurations that are alike share one trace."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.catalog = folder, TomlCatalog()
        self.jobs: dict[tuple[str, int, int], TracedJob] = {}

    def row(self, cells: Cells) -> ScaleRow:
        framework = FRAMEWORKS[str(cells["source_id"])]
        compiled = str(cells["compile"]) == "True"
        fusion = Fusion.COMPILER if compiled and framework.fusion is NONE else framework.fusion
        tensor, pipeline, context = (int(_number(cells[name], 1.0)) for name in ("tp", "pp", "cp"))
        words = f"{cells['recompute']} {cells['sharding']}"
        float8 = "fp8" in str(cells["precision"])
        plan = Parallelism(
            tensor, pipeline, _sharding(str(cells["sharding"]), framework),
            sequence=framework.sequence_parallel or "sequence parallel" in words,
            virtual=int(_number(cells["vp"], 1.0)), context=context, fusion=fusion, overlap=framework.overlap,
        )  # fmt: skip
        if framework.attention is AttentionKernel.WRITTEN and "sequence parallel" not in words:
            plan = replace(plan, sequence=False)
        gpus, batch = int(_number(cells["gpus"])), int(_number(cells["micro_batch"], 1.0))
        replicas = gpus // plan.parts
        device = self._device(str(cells["device"]))
        rate = (framework.network_gbit or {}).get(str(cells["device"])[:4])
        workload = Workload(
            ModelSource(ModelKind.HF_CONFIG, ""), batch=batch, sequence=int(_number(cells["seq"])),
            precision=Precision.FP8 if float8 else Precision.AMP_BF16, recompute=_recompute(str(cells["recompute"])),
            accumulation=max(1, round(_number(cells["global_batch"]) / (replicas * batch))), gpus=gpus,
            parallelism=plan, network=None if rate is None else NetworkRate(rate * GBIT_BYTES, per_gpu=True),
        )  # fmt: skip
        config = _configuration(cells)
        return self._make_row(framework.source, str(cells["model"]), workload, config, device, framework.attention,
                          lambda flops: _elapsed_s(cells, flops))  # fmt: skip

    def mpt_row(self, cells: Cells) -> ScaleRow:
        layers, width, heads = MPT_SHAPES[str(cells["model"])]
        sharding = {"FULL_SHARD": Sharding.FULL, "SHARD_GRAD_OP": Sharding.GRADIENTS}[str(cells["sharding_strategy"])]
        gpus, sequence = int(_number(cells["gpus"])), int(_number(cells["seqlen_t"]))
        config = {
            "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": sequence,
            "vocab_size": MPT_VOCABULARY, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        }  # fmt: skip
        precision = {"amp_fp8": Precision.FP8, "bf16": Precision.BF16}.get(str(cells["precision"]), Precision.AMP_BF16)
        gbit = 400.0 if str(cells["gpu"]).startswith("h100") else 200.0
        workload = Workload(
            ModelSource(ModelKind.HF_CONFIG, ""), batch=int(_number(cells["microbatchsize"])), sequence=sequence,
            precision=precision, accumulation=int(_number(cells["gradaccum"])), gpus=gpus,
            recompute=Recompute.FULL if cells["activation_checkpointing"] else Recompute.NONE,
            parallelism=Parallelism(sharding=sharding, fusion=NONE, overlap=Overlap.DATA),
            network=NetworkRate(gbit * GBIT_BYTES, per_gpu=True),
        )  # fmt: skip
        elapsed_s = _number(cells["globalbatchsize_t"]) / _number(cells["throughput_t_s"])
        device = self._device(str(cells["gpu"]))
        return self._make_row("llm-foundry", str(cells["model"]), workload, config, device, AttentionKernel.FLASH1,
                          lambda _: elapsed_s)  # fmt: skip

    def bridge_row(self, step: BridgeStep) -> ScaleRow:
        device = self.catalog.device(step.device)
        return self._make_row(step.source, step.model, step.workload, step.config, device, None,
                          lambda _: step.elapsed_s)  # fmt: skip

    def _device(self, name: str) -> Device:
        device = self.catalog.device(DEVICES[name])
        if "500W" not in name:
            return device
        # torchtitan's H100s of 96 GB have HBM2e and a limit of 500 W.
        peaks = {dtype: 0.85 * peak for dtype, peak in device.peak_flops_per_s.items()}
        return replace(device, memory_bytes_per_s=2.4e12, peak_flops_per_s=peaks, tdp_w=500.0)

    def _make_row(
        self, source: str, model: str, workload: Workload, config: Mapping[str, object], device: Device,
        attention: AttentionKernel | None, elapsed_s: Callable[[float], float],
    ) -> ScaleRow:  # fmt: skip
        text = json.dumps(config, sort_keys=True)
        key = text, workload.batch or 1, workload.sequence or 0
        if key not in self.jobs:
            path = self.folder / f"{len(self.jobs)}.json"
            path.write_text(text, encoding="utf-8")
            alone = Workload(
                ModelSource(ModelKind.HF_CONFIG, str(path)), batch=workload.batch, sequence=workload.sequence,
                precision=Precision.BF16,
            )  # fmt: skip
            self.jobs[key] = expand(alone)
        job, nodes = self.jobs[key], max(1, workload.gpus // PER_NODE)
        fabric = job_fabric(workload, device, nodes, None)
        # The trace is of one microbatch.
        step = make_training_step(replace(workload, accumulation=1), job, device, fabric)
        step = replace(step, microbatches=workload.accumulation)
        if attention is not None:
            step = replace(step, attention=attention)
        work = step.work
        if attention is AttentionKernel.WRITTEN:
            # All pairs are computed, and their scores are written.
            heads = int(str(config.get("num_attention_heads", config.get("n_head", 1))))
            pairs = work.attention_flops / (2 * work.width) * heads
            step = replace(step, work=replace(work, attention_flops=2 * work.attention_flops, scores=pairs))
        weights = work.layer_weights + sum(p.weights for p in work.products if p.cut.value == "head")
        flops = (6 * weights * work.tokens + 3 * work.attention_flops) * step.microbatches
        flops *= workload.gpus / (workload.parallelism.parts)
        return ScaleRow(source, model, workload, step, elapsed_s(flops), flops, config)


def _sharding(text: str, framework: Framework) -> Sharding:
    if text.startswith("fsdp"):
        return Sharding.FULL
    return Sharding.OPTIMIZER if text == "zero1" or framework.source.startswith("nemo") else Sharding.NONE


def _recompute(text: str) -> Recompute:
    if text.startswith("selective"):
        return Recompute.SELECTIVE
    return Recompute.FULL if text == "full" else Recompute.NONE


def _configuration(cells: Cells) -> dict[str, object]:
    """Return the model as a ``config.json``; models that are not called Llama have plain blocks."""
    sizes = {"hidden_size": "hidden", "intermediate_size": "ffn", "num_hidden_layers": "layers", "vocab_size": "vocab"}
    config: dict[str, object] = {field: int(_number(cells[name])) for field, name in sizes.items()}
    config["max_position_embeddings"] = int(_number(cells["seq"]))
    width = int(_number(cells["hidden"]))
    usual = min((heads for heads in range(1, 257) if width % heads == 0), key=lambda heads: abs(width / heads - 128))
    heads = int(_number(cells["heads"], usual))
    config["num_attention_heads"] = heads
    gated = str(cells["model"]).startswith(("Llama", "nanotron"))
    config["model_type"] = "llama" if gated else "gpt_neox"
    if gated:
        config["num_key_value_heads"] = int(_number(cells["kv_heads"], heads))
    return config


def _elapsed_s(cells: Cells, flops: float) -> float:
    """Return the seconds of a step from its time, its tokens a second, or its FLOP/s."""
    step_s, gpus = _number(cells["step_time_s"]), _number(cells["gpus"])
    if step_s > 0:
        return step_s
    if (rate := _number(cells["tokens_per_s_per_gpu"])) > 0:
        return _number(cells["global_batch"]) * _number(cells["seq"]) / (rate * gpus)
    peak = {"A": 312e12, "H": 989e12}[str(cells["device"])[0]]
    rate = _number(cells["tflops_per_gpu"]) * 1e12
    rate = rate if rate > 0 else _number(cells["mfu_pct"]) / 100 * peak
    return _counted_flops(cells, flops) / (rate * gpus)


def _counted_flops(cells: Cells, flops: float) -> float:
    """Return the FLOPs of a step as the source counts them."""
    sizes = {name: _number(cells[name]) for name in ("layers", "hidden", "seq", "global_batch", "vocab")}
    tokens = sizes["global_batch"] * sizes["seq"]
    causal = 6 * sizes["layers"] * sizes["hidden"] * sizes["seq"] * tokens
    if "hardware" in str(cells["flops_kind"]):  # full recomputation counts, and all pairs of attention
        head = 6 * sizes["vocab"] * sizes["hidden"] * tokens
        return (flops - causal - head) * 4 / 3 + head + 16 / 6 * causal
    return flops + causal  # all pairs of attention

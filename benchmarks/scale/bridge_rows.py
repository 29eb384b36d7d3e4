"""Training steps in the performance summaries of two NVIDIA frameworks, Megatron Bridge and NeMo AutoModel.

The pages of Megatron Bridge (Apache-2.0) are ``docs/performance-summary.md`` and
``docs/performance-summary-archive.md`` of the repository NVIDIA-NeMo/Megatron-Bridge. Copies in the data folder have
names that end in ``performance-summary.md`` and ``performance-summary-archive.md``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

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

BRIDGE, AUTOMODEL = "megatron bridge", "automodel"
SYSTEMS = {
    "DGX-H100": ("H100 SXM5 80GB", 400.0), "DGX-B200": ("B200 SXM", 400.0), "DGX-B300": ("B300 SXM", 800.0),
    "DGX-GB200": ("GB200 (per GPU)", 400.0), "DGX-GB300": ("GB300 (per GPU)", 800.0),
}  # fmt: skip
"""Device and Gb/s a GPU of each system: ConnectX-7, and ConnectX-8 in the later ones."""
PRECISIONS = {"BF16": Precision.BF16, "FP8": Precision.FP8, "FP8-CS": Precision.FP8, "FP8-MX": Precision.MXFP8,
              "MXFP8": Precision.MXFP8, "NVFP4": Precision.NVFP4}  # fmt: skip
LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256}
QWEN = {
    "model_type": "qwen3_moe", "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "norm_topk_prob": True,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
}  # fmt: skip
CONFIGURATIONS: Mapping[str, dict[str, object]] = {
    "LLAMA3_8B": {**LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
                  "num_attention_heads": 32},
    "LLAMA3_70B": {**LLAMA, "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672,
                   "num_attention_heads": 64},
    "LLAMA3.1_405B": {**LLAMA, "hidden_size": 16384, "num_hidden_layers": 126, "intermediate_size": 53248,
                      "num_attention_heads": 128},
    "Qwen3_30B_a3B": {**QWEN, "hidden_size": 2048, "num_hidden_layers": 48, "moe_intermediate_size": 768,
                      "intermediate_size": 6144, "num_attention_heads": 32},
    "Qwen3_235B_a22B": {**QWEN, "hidden_size": 4096, "num_hidden_layers": 94, "moe_intermediate_size": 1536,
                        "intermediate_size": 12288, "num_attention_heads": 64},
    "GPT OSS 20B": {**GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    "GPT OSS 120B": {**GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
}  # fmt: skip
"""The models by their published configurations."""


@dataclass(frozen=True, slots=True)
class BridgeStep:
    """A published step: its model, device, layout and seconds."""

    source: str
    model: str
    device: str
    workload: Workload
    elapsed_s: float

    @property
    def config(self) -> dict[str, object]:
        """The model as a ``config.json``."""
        return {**CONFIGURATIONS[self.model], "max_position_embeddings": self.workload.sequence}


def automodel_steps() -> list[BridgeStep]:
    """Return the steps of NeMo AutoModel's performance summary.

    Source: docs/performance-summary.mdx of NVIDIA-NeMo/Automodel (Apache-2.0) at 36044ad3, with recomputation and
    experts' groups from its examples/llm_benchmark.
    """
    full = Recompute.FULL
    return [
        _automodel("LLAMA3_70B", 64, 18.90, 128, 1, 8192, Parallelism(context=2), full),
        _automodel("Qwen3_30B_a3B", 8, 21.773, 512, 4, 4096, Parallelism(expert=8), full),
        _automodel("GPT OSS 20B", 8, 10.04, 256, 2, 4096, Parallelism(expert=8)),
        _automodel("GPT OSS 120B", 64, 4.30, 512, 2, 4096, Parallelism(expert=64)),
    ]


def _automodel(
    model: str, gpus: int, elapsed_s: float, samples: int, batch: int, sequence: int, plan: Parallelism,
    recompute: Recompute = Recompute.NONE,
) -> BridgeStep:  # fmt: skip
    device, network_gbit = SYSTEMS["DGX-H100"]
    plan = replace(plan, sharding=Sharding.FULL, fusion=Fusion.LIBRARY, overlap=Overlap.DATA)
    workload = Workload(
        ModelSource(ModelKind.HF_CONFIG, ""), batch=batch, sequence=sequence, precision=Precision.BF16, gpus=gpus,
        parallelism=plan, accumulation=samples * plan.parts // (gpus * batch), recompute=recompute,
        network=NetworkRate(network_gbit * GBIT_BYTES, per_gpu=True),
    )  # fmt: skip
    return BridgeStep(AUTOMODEL, model, device, workload, elapsed_s)


def bridge_steps(data: Path) -> list[BridgeStep]:
    """Return the steps of pre-training in all pages of a folder; none without a page."""
    pages = sorted(data.glob("*performance-summary*.md"))
    cells = [row for page in pages for row in _tables(page.read_text(encoding="utf-8"))]
    return [_step(row) for row in cells if _is_usable(row)]


def _tables(page: str) -> Iterator[dict[str, str]]:
    """Yield each row of the tables on pre-training, with the model or system of its heading."""
    part, heading, names = "", "", list[str]()
    for line in page.splitlines():
        if line.startswith("### "):
            part = line
        elif line.startswith("#### "):
            heading = line
        if not line.startswith("|"):
            names = []
            continue
        values = [cell.strip() for cell in line.strip("|\n ").split("|")]
        if not names:
            names = values
        elif "Pre-Training" in part and not set(line) <= set("|- "):
            about = re.fullmatch(r"#### (Model|System): (.+?)(?: \(.*\))?\s*", heading)
            yield dict(zip(names, values, strict=True)) | ({about[1]: about[2]} if about else {})


def _is_usable(cells: Mapping[str, str]) -> bool:
    """Return whether a row names a model, a precision and a system that are compared here."""
    known = cells.get("Model") in CONFIGURATIONS and cells.get("System") in SYSTEMS
    return known and _word(cells.get("Precision", "")) in PRECISIONS


def _word(cell: str) -> str:
    """Return the first word of a cell: another recipe's value follows in parentheses, or a footnote."""
    return re.split(r"[ (\[]", cell, maxsplit=1)[0]


def _count(cell: str | None) -> int:
    """Return a number, 1 where the page has none."""
    word = _word(cell or "")
    return max(int(word), 1) if word.isdigit() else 1


def _step(cells: Mapping[str, str]) -> BridgeStep:
    device, network_gbit = SYSTEMS[cells["System"]]
    gpus, batch, sequence = (_count(cells[name]) for name in ("#-GPUs", "MBS", "Sequence Length"))
    is_sharded = _word(cells.get("FSDP", "0")) not in ("0", "")
    plan = Parallelism(
        _count(cells["TP"]), _count(cells["PP"]), Sharding.FULL if is_sharded else Sharding.OPTIMIZER,
        virtual=_count(cells["VP"]) if _count(cells["PP"]) > 1 else 1, context=_count(cells["CP"]),
        expert=_count(cells["EP"]), fusion=Fusion.LIBRARY, overlap=Overlap.ALL,
    )  # fmt: skip
    tokens_per_s = _count(cells["Tokens / sec / GPU"])
    workload = Workload(
        ModelSource(ModelKind.HF_CONFIG, ""), batch=batch, sequence=sequence,
        precision=PRECISIONS[_word(cells["Precision"])], gpus=gpus, parallelism=plan,
        accumulation=max(1, _count(cells["GBS"]) * plan.parts // (gpus * batch)),
        network=NetworkRate(network_gbit * GBIT_BYTES, per_gpu=True),
    )  # fmt: skip
    step_tokens = workload.accumulation * batch * sequence * gpus // plan.parts
    return BridgeStep(BRIDGE, cells["Model"], device, workload, step_tokens / (tokens_per_s * gpus))

"""The dtype of a checkpoint's weights, as its ``config.json`` or the habit of its family tells."""

from typing import Any

from leadline.core.errors import InvalidInput
from leadline.core.workload import Precision

FLOAT32_FAMILIES = frozenset({
    "gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "bert", "roberta", "xlm-roberta", "camembert", "distilbert",
    "electra", "albert", "mpnet", "deberta", "deberta-v2", "modernbert", "vit", "deit", "t5", "mt5", "bart", "mbart",
    "whisper",
})  # fmt: skip
"""Families whose published checkpoints are mostly in float32. Those of the others are in 16 bits."""

_PRECISIONS = {"float32": Precision.FP32, "float16": Precision.FP16, "bfloat16": Precision.BF16}


def stored_precision(config: dict[str, Any], reference: str, *, quantized: bool) -> tuple[Precision, str]:
    """Return the precision that a checkpoint loads in with ``dtype="auto"``, and a note if the file does not name it.

    A ``quantized`` checkpoint computes in 16 bits, unless the file names another dtype.

    Raises:
        InvalidInput: The file names a dtype that Leadline does not estimate.
    """
    named = _named_dtype(config)
    if named is not None:
        if named not in _PRECISIONS:
            raise InvalidInput(
                f"{reference} has the dtype {named[:40]!r}, which is not estimated: set --precision fp32, fp16 or bf16"
            )
        return _PRECISIONS[named], ""
    inner = config.get("text_config")
    family = str((inner if isinstance(inner, dict) else config).get("model_type") or config.get("model_type"))
    if quantized:
        precision, why = Precision.BF16, "since quantized weights are multiplied in 16 bits"
    elif family in FLOAT32_FAMILIES:
        precision, why = Precision.FP32, f"as most published {family} checkpoints"
    else:
        precision, why = Precision.BF16, f"as most published {family} checkpoints have 16 bits"
    return precision, f"{reference} names no dtype: assumed {precision.value}, {why}; set it with --precision"


def _named_dtype(config: dict[str, Any]) -> str | None:
    """Return the dtype in the file, of the whole model or of its language model; ``None`` for ``auto``."""
    inner = config.get("text_config")
    for holder in (config, inner if isinstance(inner, dict) else {}):
        for name in ("dtype", "torch_dtype"):
            value = holder.get(name)
            if value and value != "auto":
                return str(value).removeprefix("torch.")
    return None

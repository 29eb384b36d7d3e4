"""The dtype of a checkpoint's weights, as its ``config.json`` or the habit of its family tells."""

from leadline.core.errors import InvalidInput
from leadline.core.workload import Precision
from leadline.graphs.hf_config.fields import Config, model_values

FLOAT32_FAMILIES = frozenset({
    "gpt2", "gpt_neo", "gptj", "codegen", "gpt_bigcode", "bert", "roberta", "xlm-roberta", "camembert", "distilbert",
    "electra", "albert", "mpnet", "deberta", "deberta-v2", "modernbert", "vit", "deit", "t5", "mt5", "bart", "mbart",
    "whisper",
})  # fmt: skip
"""Families whose published checkpoints are mostly in float32. Those of the others are in 16 bits."""

_PRECISIONS = {"float32": Precision.FP32, "float16": Precision.FP16, "bfloat16": Precision.BF16}


def stored_precision(config: Config, reference: str, *, quantized: bool) -> tuple[Precision, str]:
    """Return the precision that a checkpoint loads in with ``dtype="auto"``, and a note if the file does not name it.

    A ``quantized`` checkpoint computes in 16 bits, unless the file names another dtype.

    Raises:
        InvalidInput: The file names a dtype that Leadline does not estimate.
    """
    dtypes = (value for value in model_values(config, "dtype", "torch_dtype") if value and value != "auto")
    if (dtype := next(dtypes, None)) is not None:
        named = str(dtype).removeprefix("torch.")
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

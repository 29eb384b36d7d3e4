"""Read the shape of a model from a ``config.json``, with the reader of its family."""

import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName
from leadline.graphs.hf_config import decoders, encoder_decoders, encoders
from leadline.graphs.hf_config.decoders import FamilyStyle
from leadline.graphs.hf_config.fields import Config, ConfigFields
from leadline.graphs.hf_config.shape import ModelShape

Reader = Callable[[ConfigFields], ModelShape]


def read_model_shape(config: Config, reference: str) -> tuple[ModelShape, tuple[str, ...]]:
    """Return the shape of a configuration, and the fields it leaves out. ``reference`` names it in errors.

    Raises:
        UnknownName: The ``model_type`` is not one of the known families.
        InvalidInput: A size is missing, not a number, not positive, or inconsistent with another.
    """
    family = config.get("model_type")
    if family is None:
        raise InvalidInput(f"{reference} has no model_type: it is not a Hugging Face model configuration")
    if not isinstance(family, str) or family not in FAMILIES:
        fix = f"known are {', '.join(sorted(FAMILIES))}; give any other model as a file.py:function or a command"
        raise UnknownName(f"model_type in {reference}", str(family), FAMILIES, fix=fix)
    fields = ConfigFields(config, reference)
    shape = FAMILIES[family](fields)
    return shape, tuple(dict.fromkeys(fields.assumed))


def _styles() -> Iterator[tuple[str, FamilyStyle]]:
    """Yield the families of ``families.toml``, each with its style."""
    tables = tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))
    for family, table in tables.items():
        base = tables.get(table.pop("like", None), {})
        names = {**base.get("names", {}), **table.get("names", {})}
        yield family, FamilyStyle(**{**base, **table, "names": names})


READERS = {
    "opt": decoders.opt, "mpt": decoders.mpt, "falcon": decoders.falcon, "albert": encoders.albert,
    "deberta": encoders.deberta, "deberta-v2": encoders.deberta, "mpnet": encoders.bert,
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"), encoders.bert),
}  # fmt: skip
"""Readers of the families that take more than their style to read."""

FAMILIES: dict[str, Reader] = {
    **{family: partial(READERS.get(family, decoders.read_stack), style=style) for family, style in _styles()},
    "deepseek_v2": partial(decoders.deepseek, first_dense=0, shared=2),
    "deepseek_v3": partial(decoders.deepseek, first_dense=3, shared=1),
    "modernbert": encoders.modernbert,
    "vit": encoders.vit,
    "deit": encoders.vit,
    "t5": encoder_decoders.t5,
    "mt5": encoder_decoders.t5,
    "bart": encoder_decoders.bart,
    "mbart": encoder_decoders.bart,
    "whisper": encoder_decoders.whisper,
}
"""``model_type`` → reader of its sizes. A new decoder is one table in ``families.toml``, any other family one row here;
each has a row in the parameter-count test."""

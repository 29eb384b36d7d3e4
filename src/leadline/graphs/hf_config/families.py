"""Read the shape of a model from a ``config.json``, with the reader of its family."""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName
from leadline.graphs.hf_config import decoders, encoders
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


READERS = {
    "opt": decoders.opt,
    "mpt": decoders.mpt,
    "falcon": decoders.falcon,
    "bert": encoders.bert,
    "albert": encoders.albert,
    "deberta": encoders.deberta,
    "modernbert": encoders.modernbert,
    "vit": encoders.vit,
}
"""Readers of the families of ``families.toml`` that take more than their style to read."""


def _styled_families() -> dict[str, Reader]:
    """Return the families of ``families.toml``. A family that is ``like`` another has its keys and its reader."""
    tables = tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))
    families: dict[str, Reader] = {}
    for family, table in tables.items():
        like = table.pop("like", "")
        base = tables.get(like, {})
        table["names"] = {**base.get("names", {}), **table.get("names", {})}
        tables[family] = {**base, **table}
        reader = READERS.get(family) or READERS.get(like, decoders.read_stack)
        families[family] = partial(reader, style=FamilyStyle(**tables[family]))
    return families


FAMILIES: dict[str, Reader] = {
    **_styled_families(),
    "deepseek_v2": partial(decoders.deepseek, first_dense=0, shared=2),
    "deepseek_v3": partial(decoders.deepseek, first_dense=3, shared=1),
    "t5": encoders.t5,
    "mt5": encoders.t5,
    "bart": encoders.bart,
    "mbart": encoders.bart,
    "whisper": encoders.whisper,
}
"""``model_type`` → reader of its sizes. A new decoder is one table in ``families.toml``, any other family one row here;
each has a row in the parameter-count test."""

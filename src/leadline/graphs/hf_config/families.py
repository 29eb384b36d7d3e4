"""Read the shape of a model from a ``config.json``, with the reader of its family."""

import tomllib
from collections.abc import Callable
from pathlib import Path

from leadline.core.errors import InvalidInput, UnknownName
from leadline.graphs.hf_config import decoders, encoders
from leadline.graphs.hf_config.decoders import FamilyStyle
from leadline.graphs.hf_config.fields import Config, ConfigFields
from leadline.graphs.hf_config.shape import ModelShape

Reader = Callable[[ConfigFields, FamilyStyle], ModelShape]


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
    reader, style = FAMILIES[family]
    return reader(fields, style), tuple(dict.fromkeys(fields.assumed))


READERS: dict[str, Reader] = {
    "opt": decoders.opt,
    "mpt": decoders.mpt,
    "falcon": decoders.falcon,
    "qwen": decoders.qwen,
    "bert": encoders.bert,
    "albert": encoders.albert,
    "deberta": encoders.deberta,
    "modernbert": encoders.modernbert,
    "vit": encoders.vit,
    "deepseek_v2": decoders.deepseek,
    "t5": encoders.t5,
    "bart": encoders.bart,
    "whisper": encoders.whisper,
}
"""Readers of the families that take more than their style to read."""


def _read_families() -> dict[str, tuple[Reader, FamilyStyle]]:
    """Return the families of ``families.toml``. A family that is ``like`` another has its keys and its reader."""
    tables = tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))
    families: dict[str, tuple[Reader, FamilyStyle]] = {}
    for family, table in tables.items():
        like = table.pop("like", "")
        base = tables.get(like, {})
        table["names"] = {**base.get("names", {}), **table.get("names", {})}
        tables[family] = {**base, **table}
        reader = READERS.get(family) or READERS.get(like, decoders.read_stack)
        families[family] = reader, FamilyStyle(**tables[family])
    return families


FAMILIES = _read_families()
"""``model_type`` → reader of its sizes, and its style. Each family has a row in the parameter-count test."""

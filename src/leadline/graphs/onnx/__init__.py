"""Onnx."""

import tomllib
from pathlib import Path

OPERATORS = tomllib.loads((Path(__file__).parent / "operators.toml").read_text(encoding="utf-8"))
"""Operators by what they do: ``kinds``, ``views`` and ``tracked``."""

"""ONNX files as op graphs of inference."""

import tomllib
from pathlib import Path
from typing import Any

OPERATORS = tomllib.loads((Path(__file__).parent / "operators.toml").read_text(encoding="utf-8"))
"""Operators by what they do: ``kinds``, ``views`` and ``tracked``."""

Message = Any
"""A protobuf message of the onnx package (model, graph, node or type), which brings no types of its own."""

"""Front-end for XLA: StableHLO and HLO text, and JAX functions lowered to it, as op graphs."""

import tomllib
from pathlib import Path
from typing import Any

OPCODE_TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "opcodes.toml").read_text(encoding="utf-8"))
OPCODES = {name: frozenset(opcodes) for name, opcodes in OPCODE_TABLE.items() if isinstance(opcodes, list)}
"""Sets of opcodes, and of targets of custom calls, by what they do."""

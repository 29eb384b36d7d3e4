"""Lay what a user writes of a site over the file that describes it, so that either can be renewed by itself."""

from collections.abc import Mapping
from typing import Any


def laid_over(file: Mapping[str, Any], additions: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``file`` with the values of ``additions`` in place of its own.

    Tables are laid over key by key, and lists of tables that have names (systems, partitions) by these names; what is
    new is added at the end.
    """
    merged = dict(file)
    for key, value in additions.items():
        merged[key] = _laid_over(merged[key], value) if key in merged else value
    return merged


def _laid_over(old: Any, new: Any) -> Any:  # noqa: ANN401 - plain values of TOML
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return laid_over(old, new)
    if _are_named(old) and _are_named(new):
        rows = {row["name"]: row for row in old}
        for row in new:
            rows[row["name"]] = laid_over(rows.get(row["name"], {}), row)
        return list(rows.values())
    return new


def _are_named(value: Any) -> bool:  # noqa: ANN401 - plain values of TOML
    return isinstance(value, list) and all(isinstance(row, Mapping) and "name" in row for row in value)

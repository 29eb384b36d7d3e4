"""The tables of the documentation's page on ``bench dnn``, from its result file.

``python -m benchmarks.dnn.page RESULT.json`` prints them in Markdown.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.dnn.splits import COUNTED
from benchmarks.markdown import markdown_table

HEADS = ("split", "rows", "MAPE", "target", "median", "P90", "best other", "coverage of 90 % intervals")


def tables(details: Sequence[Mapping[str, Any]]) -> str:
    """Return one Markdown table for each table of the benchmark, under its name."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for detail in details:
        named.setdefault(detail["table"], []).append(detail)
    return "\n\n".join(f"## {name[0].upper()}{name[1:]}\n\n{_splits(splits)}" for name, splits in named.items())


def _splits(splits: Sequence[Mapping[str, Any]]) -> str:
    rows: list[list[str]] = []
    for split in splits:
        rows += [_refused(split)] if "refused" in split else [_answered(split), *_by_device(split), *_by_method(split)]
    return markdown_table(HEADS, rows)


def _answered(split: Mapping[str, Any]) -> list[str]:
    methods = split["methods"]
    first, *baselines = methods
    errors, targets = methods[first], split["targets"]
    answered = [name for name in baselines if methods[name]["n"]]
    best = min(answered, key=lambda name: methods[name]["mape"], default=None)
    return [
        split["split"],
        f"{errors['n']:,}",
        _met(errors["mape"], targets["mape"]),
        " / ".join(f"{target:g} %" for target in targets.values() if target is not None),
        _met(errors["median"], targets["median"]),
        _met(errors["p90"], targets["p90"]),
        f"{methods[best]['mape']:.1f} % ({best})" if best else "",
        _coverage(split["coverage"]),
    ]


def _by_device(split: Mapping[str, Any]) -> list[list[str]]:
    """Return one row for each device with its own target."""
    return [
        [f"… {name}", f"{errors['n']:,}", _met(errors["mape"], errors["target"]), f"{errors['target']:g} %",
         _met(errors["median"], None), _met(errors["p90"], None), "", ""]
        for name, errors in split["apart"].items()
    ]  # fmt: skip


def _by_method(split: Mapping[str, Any]) -> list[list[str]]:
    """Return one row for each other method, where all methods are compared."""
    methods = list(split["methods"].items())[1:] if split.get("compared") else []
    return [
        [f"… {name}", f"{errors['n']:,}", f"{errors['mape']:.1f} %", "", f"{errors['median']:.1f} %",
         f"{errors['p90']:.1f} %", "", ""]
        for name, errors in methods
    ]  # fmt: skip


def _refused(split: Mapping[str, Any]) -> list[str]:
    share = f"{split['refused']} of {split['questions']} refused"
    guess = f"{split['guessed_mape']:.0f} % (a guess)"
    return [split["split"], str(split["questions"]), share, "all", "", "", guess, ""]


def _met(value: float, target: float | None) -> str:
    """Write a percentage, in bold where it misses its target."""
    return f"**{value:.1f} %**" if target is not None and value > target else f"{value:.1f} %"


def _coverage(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the lowest and the highest coverage of the groups with enough rows, or of all where none has."""
    enough = [group["percent"] for group in groups.values() if group["n"] >= COUNTED]
    shares = enough or [group["percent"] for group in groups.values()]
    text = f"{min(shares):.0f} %" if len(shares) == 1 else f"{min(shares):.0f} to {max(shares):.0f} %"
    return text if enough else f"{text} (few rows)"


if __name__ == "__main__":
    sys.stdout.write(tables(msgspec.json.decode(Path(sys.argv[1]).read_bytes())["details"]) + "\n")

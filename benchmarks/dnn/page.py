"""The tables of the documentation's page on ``leadline bench dnn``, made of what it wrote.

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
    """Return one table in Markdown for each table of the bench, under its name."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for one in details:
        named.setdefault(one["table"], []).append(one)
    return "\n\n".join(f"## {name[0].upper()}{name[1:]}\n\n{_splits(splits)}" for name, splits in named.items())


def _splits(splits: Sequence[Mapping[str, Any]]) -> str:
    rows = [row for one in splits for row in ([_refused(one)] if "refused" in one else [_answered(one), *_apart(one)])]
    return markdown_table(HEADS, rows)


def _answered(split: Mapping[str, Any]) -> list[str]:
    methods = split["methods"]
    own, *others = methods
    figures, targets = methods[own], split["targets"]
    best = min((one for one in others if methods[one]["n"]), key=lambda one: methods[one]["mape"], default=None)
    return [
        split["split"],
        f"{figures['n']:,}",
        _met(figures["mape"], targets["mape"]),
        " / ".join(f"{one:g} %" for one in targets.values() if one is not None),
        _met(figures["median"], targets["median"]),
        _met(figures["p90"], targets["p90"]),
        f"{methods[best]['mape']:.1f} % ({best})" if best else "",
        _coverage(split["coverage"]),
    ]


def _apart(split: Mapping[str, Any]) -> list[list[str]]:
    """Return one row for each device that is told apart."""
    return [
        [f"… {name}", f"{one['n']:,}", _met(one["mape"], one["target"]), f"{one['target']:g} %",
         _met(one["median"], None), _met(one["p90"], None), "", ""]
        for name, one in split["apart"].items()
    ]  # fmt: skip


def _refused(split: Mapping[str, Any]) -> list[str]:
    told = f"{split['refused']} of {split['questions']} refused"
    return [
        split["split"],
        str(split["questions"]),
        told,
        "all",
        "",
        "",
        f"{split['guessed_mape']:.0f} % (a guess)",
        "",
    ]


def _met(value: float, target: float | None) -> str:
    """Write a figure, bold where it has a target and misses it."""
    return f"**{value:.1f} %**" if target is not None and value > target else f"{value:.1f} %"


def _coverage(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the lowest and the highest share of the groups that have rows enough, or of all where none has."""
    enough = [one["percent"] for one in groups.values() if one["n"] >= COUNTED]
    shares = enough or [one["percent"] for one in groups.values()]
    said = f"{min(shares):.0f} %" if len(shares) == 1 else f"{min(shares):.0f} to {max(shares):.0f} %"
    return said if enough else f"{said} (few rows)"


if __name__ == "__main__":
    sys.stdout.write(tables(msgspec.json.decode(Path(sys.argv[1]).read_bytes())["details"]) + "\n")

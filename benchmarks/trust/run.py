"""``bench trust``: wrong answers of the past, harm that a traced script may do, hostile input, a busy machine."""

from importlib import import_module

from benchmarks.results import BenchmarkResult, BenchmarkRow
from leadline.core.errors import UnknownName

PARTS = {
    "answers": "benchmarks.trust.answers",
    "catalog": "benchmarks.trust.catalog",
    "facts": "benchmarks.trust.facts",
    "hostile": "benchmarks.trust.hostile",
    "input": "benchmarks.trust.fuzz",
    "busy": "benchmarks.trust.busy",
}
"""Part -> the module with its ``rows(*, quick)``. The last one loads all cores."""


def run(*, quick: bool = False, only: str | None = None) -> BenchmarkResult:
    """Measure all parts or one.

    Raises:
        UnknownName: There is no such part.
    """
    if only is not None and only not in PARTS:
        raise UnknownName("part of bench trust", only, PARTS, fix=f"it has {', '.join(PARTS)}")
    rows: list[BenchmarkRow] = []
    for part in [only] if only else PARTS:
        rows += import_module(PARTS[part]).rows(quick=quick)
    return BenchmarkResult("trust", tuple(rows))

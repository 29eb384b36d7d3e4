"""``bench trust``: wrong answers of the past, harm that a traced script may do, hostile input, a busy machine."""

from collections.abc import Callable, Sequence

from benchmarks.results import BenchmarkResult, BenchmarkRow
from benchmarks.temporary import temporary_files
from benchmarks.trust import answers, busy, catalog, facts, fuzz, hostile
from leadline.core.errors import UnknownName

PARTS = ("answers", "catalog", "facts", "hostile", "input", "busy")
"""The last one loads all cores."""


@temporary_files("leadline-trust-")
def run(*, quick: bool = False, only: str | None = None) -> BenchmarkResult:
    """Measure all parts or one.

    Raises:
        UnknownName: There is no such part.
    """
    if only is not None and only not in PARTS:
        raise UnknownName("part of bench trust", only, PARTS, fix=f"it has {', '.join(PARTS)}")
    measure: dict[str, Callable[[], Sequence[BenchmarkRow]]] = {
        "answers": answers.rows,
        "catalog": lambda: catalog.rows(quick=quick),
        "facts": facts.rows,
        "hostile": lambda: hostile.rows(quick=quick),
        "input": lambda: fuzz.rows(quick=quick),
        "busy": lambda: busy.rows(quick=quick),
    }
    rows = [row for part in ([only] if only else PARTS) for row in measure[part]()]
    return BenchmarkResult("trust", tuple(rows))

"""``bench trust``: wrong answers of the past, harm that a traced script may do, hostile input, a busy machine."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import BenchmarkResult, BenchmarkRow
from benchmarks.temporary import temporary_files
from benchmarks.trust import answers, busy, catalog, facts, fuzz, hostile, multi_node
from leadline.core.errors import InvalidInput, UnknownName

PARTS = ("answers", "catalog", "facts", "hostile", "input", "published", "busy")
"""The last one loads all cores."""


@temporary_files("leadline-trust-")
def run(*, quick: bool = False, data: Path | None = None, only: str | None = None) -> BenchmarkResult:
    """Measure all parts or one; ``data`` is a folder with published runs on several nodes.

    Raises:
        UnknownName: There is no such part.
        InvalidInput: The part needs the published runs.
    """
    if only is not None and only not in PARTS:
        raise UnknownName("part of bench trust", only, PARTS, fix=f"it has {', '.join(PARTS)}")
    if only == "published" and data is None:
        raise InvalidInput("--only published compares with published runs: name their folder with --data")
    measure: dict[str, Callable[[], Sequence[BenchmarkRow]]] = {
        "answers": answers.rows,
        "catalog": lambda: catalog.rows(quick=quick),
        "facts": facts.rows,
        "hostile": lambda: hostile.rows(quick=quick),
        "input": lambda: fuzz.rows(quick=quick),
        "published": lambda: multi_node.published_runs(data) if data is not None else (),
        "busy": lambda: busy.rows(quick=quick),
    }
    rows = [row for part in ([only] if only else PARTS) for row in measure[part]()]
    return BenchmarkResult("trust", tuple(rows))

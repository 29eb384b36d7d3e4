"""The verb ``history``: past runs, with their predictions."""

from leadline.app import settings
from leadline.core.documents import to_document, to_json
from leadline.core.estimate import Interval
from leadline.core.frozen import Frozen
from leadline.core.runs import Run
from leadline.history.export import runs_to_csv
from leadline.history.sqlite import SqliteHistory

QUANTITIES = ("elapsed_s", "step_s", "host_memory_bytes", "gpu_memory_bytes")


class RunComparison(Frozen):
    """One quantity, predicted and measured; ``None`` where unknown.

    ``error`` is (predicted - measured) ÷ measured, and ``within`` is true if the measurement lies in the interval.
    Both are ``None`` for a run that was cut off, whose measurements are lower bounds.
    """

    quantity: str
    predicted: Interval | None
    measured: float | None
    error: float | None
    within: bool | None
    lower_bound: bool


def list_runs(limit: int | None = None) -> tuple[Run, ...]:
    """Return the runs of the history, newest first."""
    return tuple(SqliteHistory(settings.history_path()).runs(limit=limit))


def show_run(run_id: str) -> Run:
    """Return one run by its id or a prefix of it; ``UnknownName`` if there is none."""
    return SqliteHistory(settings.history_path()).get(run_id)


def export_runs(form: str) -> str:
    """Return the whole history as ``csv`` or ``json`` text."""
    runs = list_runs()
    if form == "csv":
        return runs_to_csv(runs)
    return to_json(to_document({"runs": runs}, "leadline.history/1")) + "\n"


def compare_run(run: Run) -> tuple[RunComparison, ...]:
    """Return predicted and measured values of each quantity that has one."""
    comparisons = []
    for quantity in QUANTITIES:
        predicted: Interval | None = getattr(run.predicted, quantity, None)
        figure = run.measured.get(quantity)
        measured = figure.value if figure else None
        if predicted is None and measured is None:
            continue
        error = within = None
        if predicted is not None and measured and not run.state.censored:
            error, within = (predicted.point - measured) / measured, predicted.low <= measured <= predicted.high
        comparisons.append(RunComparison(quantity, predicted, measured, error, within, run.state.censored))
    return tuple(comparisons)

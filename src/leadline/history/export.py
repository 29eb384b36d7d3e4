"""Export runs as a table for spreadsheets and data frames."""

import csv
import io
from collections.abc import Iterable

from leadline.core.runs import Run

REQUESTED = (
    "nodes", "tasks_per_node", "cores_per_task", "gpus_per_node", "memory_bytes_per_node", "walltime_s",
)  # fmt: skip
PREDICTED = ("elapsed_s", "step_s", "host_memory_bytes", "gpu_memory_bytes", "cost")


def runs_to_csv(runs: Iterable[Run]) -> str:
    """Return a CSV table with one line per run: the request, the predictions and the measurements.

    Its columns are the union over all runs. An unknown value is empty, never zero.
    """
    rows = [_row(run) for run in runs]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or ["id"], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(run: Run) -> dict[str, object]:
    row: dict[str, object] = {
        "id": run.id,
        "name": run.job.name,
        "campaign": run.tags.get("campaign"),
        "state": run.state.value,
        "censored": run.state.censored,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "host": run.host,
        "system": run.job.system,
        "partition": run.job.partition,
        "device": run.device,
        "scale": run.scale.value,
        "exit_code": run.exit_code,
        **{f"asked_{name}": getattr(run.job.resources, name) for name in REQUESTED},
    }
    for quantity in PREDICTED:
        interval = getattr(run.predicted, quantity, None)
        if interval is not None:
            row[f"predicted_{quantity}"] = interval.point
            row[f"predicted_{quantity}_low"] = interval.low
            row[f"predicted_{quantity}_high"] = interval.high
    row |= {f"measured_{quantity}": measurement.value for quantity, measurement in sorted(run.measured.items())}
    row |= {name: value for name, value in sorted(run.tags.items()) if name.startswith("node_")}
    return row | {f"parameter_{name}": value for name, value in sorted(run.parameters.items())}

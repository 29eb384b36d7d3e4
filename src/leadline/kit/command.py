"""Command line of the standalone kit: ``python FILE.pyz --out rows.jsonl --minutes 20``."""

import argparse
import json
import signal
import sys
from typing import Any, Dict, List, Optional

from leadline.kit import KIT_VERSION, KitError
from leadline.kit.run import POINT_S, MeasureOptions, MeasureSummary, describe_row, run_measurements

INTERRUPTED = 130


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the measurements and return the exit code: 0 done, 1 failure, 2 usage, 130 interrupted."""
    options = vars(_parser().parse_args(arguments))
    prints_json, out = options.pop("json"), options["out"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a batch system ends a job
    try:
        summary = run_measurements(MeasureOptions(**options), _show)
    except KitError as error:
        sys.stderr.write(f"measure: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"measure: interrupted; the same command goes on with {out}\n")
        return INTERRUPTED
    for note in summary.notes:
        sys.stderr.write(f"note: {note}\n")
    sys.stdout.write(json.dumps(vars(summary)) + "\n" if prints_json else summary_sentence(summary) + "\n")
    return 0


def summary_sentence(summary: MeasureSummary) -> str:
    """Return the result of a run in one sentence."""
    rows = sum(summary.outcomes.values())
    failures = ", ".join(f"{count} {name}" for name, count in sorted(summary.outcomes.items()) if name != "ok")
    remaining = f"{summary.left} of the design left" if summary.left else "the design is done"
    return (
        f"{rows} points in {summary.elapsed_s:.0f} s on {summary.device}{f' ({failures})' if failures else ''}; "
        f"{summary.path} holds {summary.in_file}; {remaining}"
    )


def _show(summary: MeasureSummary, row: Dict[str, Any]) -> None:
    key, outcome = describe_row(row)
    sys.stderr.write(f"[{summary.in_file}, {summary.elapsed_s:.0f} s] {key}  {outcome}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="measure",
        description="Measure steps of models on this machine: time, memory, energy, ops. Needs torch and nothing else. "
        "The same command again goes on where it was ended.",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file of measurements, begun or resumed")
    parser.add_argument("--minutes", type=float, default=20.0, metavar="N", help="end after so long (default: 20)")
    parser.add_argument("--device", default="auto", metavar="KIND", help="cuda or cpu (default: a GPU if there is one)")
    parser.add_argument("--python", default=sys.executable, metavar="PATH",
                        help="interpreter that has torch (default: this one)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny models, timed briefly")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of points (default: 0)")
    parser.add_argument("--compile", action="store_true", dest="compiled",
                        help="measure half of the points under torch.compile")  # fmt: skip
    parser.add_argument("--no-ops", action="store_false", dest="ops", help="do not profile the ops of each step")
    parser.add_argument("--point-limit", type=float, default=POINT_S, metavar="S", dest="point_s",
                        help=f"give a point up after so many seconds (default: {POINT_S:g})")  # fmt: skip
    parser.add_argument("--collectives", type=int, default=0, metavar="N",
                        help="time collectives among N processes (default: all GPUs of this machine)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON document")
    parser.add_argument("--version", action="version", version=f"leadline measuring kit {KIT_VERSION}")
    return parser

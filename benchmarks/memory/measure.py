"""``python -m benchmarks.memory.measure OUT.json``: run every point in a fresh process, and write its peaks.

Points that the file already has are not run again: delete it to measure anew.
"""

import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory.points import Point, points
from leadline.core.documents import dump
from leadline.core.errors import JobFailed
from leadline.execution.processes import run_process

SCRIPT = Path(__file__).parents[1] / "measured" / "real_step.py"
THREADS = 1
TIMEOUT_S = 600.0
SCHEMA = "leadline.memory-points/1"
HOW = (
    "each point in a fresh process, its models from the kit with a cross entropy as loss; process_bytes is VmHWM after"
    " five steps; live_bytes is what parameters, buffers and the optimizer's state hold and the memory events of"
    " torch.profiler add to it in the sixth"
)


def main(arguments: Sequence[str]) -> int:
    """Measure all points that the file lacks, and write it after each of them."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m benchmarks.memory.measure OUT.json\n")
        return 2
    target = Path(arguments[0])
    document: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {"schema": SCHEMA, "points": []}
    known = {one["key"]: one for one in document["points"]}
    wanted = points()
    for number, point in enumerate(wanted, 1):
        if point.key in known:
            continue
        told = measured(point)
        document |= {"machine": _machine(), "torch": told.pop("torch"), "threads": THREADS, "how": HOW}
        document["vector_bytes"] = told.pop("vector_bytes")
        known[point.key] = {"key": point.key, **told}
        document["points"] = [known[one.key] for one in wanted if one.key in known]
        target.write_text(dump(document) + "\n", encoding="utf-8")
        sys.stderr.write(f"{number} of {len(wanted)}: {point.key}, {told['live_bytes'] / 1e6:.0f} MB live\n")
    return 0


def measured(point: Point) -> dict[str, Any]:
    """Return what a fresh process says of the point.

    Raises:
        JobFailed: it did not run.
    """
    request = {**point.request(), "threads": THREADS}
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as folder:
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request), encoding="utf-8")
        env = {"OMP_NUM_THREADS": str(THREADS), "CUDA_VISIBLE_DEVICES": ""}
        done = run_process([sys.executable, str(SCRIPT), str(file)], env=env, timeout_s=TIMEOUT_S)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise JobFailed(f"{point.key} did not run: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _machine() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    model = next((one.partition(":")[2].strip() for one in lines if one.startswith("model name")), platform.machine())
    return {"processor": model, "system": platform.platform(), "python": platform.python_version()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

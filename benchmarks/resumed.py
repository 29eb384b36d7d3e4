"""Whether a campaign whose runner is killed at random moments, and started again each time, loses or repeats a run."""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.rows import BenchRow, at_most
from leadline.app.composition import process_runner
from leadline.app.settings import DATA_DIR_VARIABLE
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobState
from leadline.execution.processes import start_attached
from leadline.history.sqlite import SqliteHistory

KILLS = 5
RUNS, QUICK_RUNS = 24, 12
NAP_S = 0.3
PATIENCE_S = 120.0

_CAMPAIGN = """
name = "naps"
command = ["{python}", "nap.py", "{{number}}"]
design = "grid"
scaled_down_runs = 1
full_scale_runs = {runs}
limit = "1m"

[parameters.number]
kind = "integer"
scaled_down = [0, 0]
full_scale = [1, {runs}]
"""
_NAP = f"""
import sys, time
time.sleep({NAP_S})
with open("done.txt", "a") as done:
    done.write(sys.argv[1] + "\\n")
"""


def resumed_rows(*, quick: bool = False, data: Path | None = None) -> list[BenchRow]:  # noqa: ARG001 - as the others
    """Run a campaign of short naps, killed at random moments (SIGKILL, the whole process group), to its end.

    Raises:
        LeadlineError: the campaign did not end, or a command of it failed.
    """
    runs = QUICK_RUNS if quick else RUNS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "naps.toml"
        file.write_text(_CAMPAIGN.format(python=sys.executable, runs=runs), encoding="utf-8")
        (folder / "nap.py").write_text(_NAP, encoding="utf-8")
        kills = _killed_and_resumed(file)
        finished = Counter((folder / "done.txt").read_text(encoding="utf-8").split())
        kept = list(SqliteHistory(folder / "data" / "history.sqlite").runs())
    completed = {run.parameters["number"] for run in kept if run.state is JobState.COMPLETED}
    how = f"{runs + 1} naps of {NAP_S} s; the runner was killed {kills} times and started again"
    return [
        at_most("killed campaign: runs lost", runs + 1 - len(completed), 0, "", n=kills, how=how),
        at_most("killed campaign: runs made twice", sum(finished.values()) - len(finished), 0, "", n=kills, how=how),
    ]


def _killed_and_resumed(file: Path) -> int:
    """Kill the campaign after random times, then let it end; return how often it was killed before its end."""
    chance = random.Random(0)  # noqa: S311 - no secret
    argv = [sys.executable, "-m", "leadline", "campaign", "run", str(file), "--yes"]
    env = {DATA_DIR_VARIABLE: str(file.parent / "data")}
    kills = 0
    with Path(os.devnull).open("r+b") as nowhere:
        for _ in range(KILLS):
            sink = nowhere.fileno()
            runner = start_attached(argv, env=env, stdin=sink, stdout=sink, stderr=sink, own_session=True)
            time.sleep(chance.uniform(0.8, 2.5))
            kills += runner.poll() is None
            with suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
    begun = time.monotonic()
    ended = process_runner()(argv, env=env, timeout_s=PATIENCE_S)
    if ended.timed_out or ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise LeadlineError(
            f"the campaign did not end well in {time.monotonic() - begun:.0f} s: {said[-1] if said else 'nothing said'}"
        )
    return kills

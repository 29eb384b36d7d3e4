"""A whole season of the field station: a real broker, a real Slurm, cameras, a reviewer and the pipeline.

``python3 dev field-station`` runs it; ``--quick`` is a short one, and ``--faults`` injects faults meanwhile.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.field.camera_link import CameraLink, camera_link
from benchmarks.field.seasons import STATION, draw_seasons, follow_season
from benchmarks.field.station_faults import Fault, FaultInjector
from benchmarks.field.station_report import StationReport, read_report, report_lines
from leadline.core.errors import LeadlineError
from leadline.execution.clock import epoch_s
from leadline.interfaces.cli.output import print_note
from leadline.pipelines.journal import JOURNAL, Batch, PipelineJournal
from tests.support.mqtt_broker import Broker, mqtt_broker, why_no_mosquitto
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/field_station"
PLAN = ClusterPlan(name="field", nodes=1, cores=2, memory_mib=6000)
ARCHIVE = 1500
SETTLED_S = 3.0
"""Time without work after which a season is through."""
MOST_S, END_S = 1200.0, 30.0
"""Longest wait for the end of a season, and of its programs."""
CLUSTER, PIPELINE = "slurm:short", "station.toml"


@dataclass(frozen=True)
class SeasonPlan:
    """Size of a season: images, their rate per second, whether faults are injected and other policies followed."""

    images: int = 5200
    rate: float = 14.0
    seed: int = 1
    strength: float = 1.0
    faults: bool = False
    policies: bool = True

    @property
    def words(self) -> list[str]:
        """Options that name the season to the example's programs."""
        return ["--seed", str(self.seed), "--images", str(self.images), "--strength", str(self.strength)]

    @property
    def camera_words(self) -> list[str]:
        """Options of the cameras: with faults, one corrupt image and one duplicate."""
        faults = ["--corrupt", str(self.images * 2 // 3), "--duplicates", str(self.images * 3 // 5)]
        return [*self.words, "--rate", str(self.rate), "--first", "1", *(faults if self.faults else [])]


QUICK = SeasonPlan(images=600, rate=15.0, policies=False)


@dataclass
class Station:
    """The parts of a running season."""

    home: Path
    environment: Mapping[str, str]
    broker: Broker
    link: CameraLink
    report: Callable[[str], None]
    cluster: SlurmCluster = field(init=False)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def season(self) -> Path:
        """The pipeline's folder."""
        return self.home / "season"

    def run(self, program: str, *words: str, prefix: Sequence[str] = ()) -> None:
        """Run a program of the example to its end."""
        command = [*prefix, sys.executable, str(self.home / program), *words]
        with (self.home / f"{program}.log").open("ab") as log:
            code = subprocess.run(  # noqa: S603 - the example's own programs
                command, cwd=self.season, env=self.environment, stdout=log, stderr=log, check=False
            ).returncode
        if code:
            raise LeadlineError(f"{program} ended with code {code}: {_tail(self.home / f'{program}.log')}")

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a program that runs during the season."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - the example's own programs
                command, cwd=self.season, env=self.environment, stdout=log, stderr=log
            )

    def check(self) -> None:
        """Raise if a program has ended with an error."""
        for name, process in self.processes.items():
            if (process.poll() or 0) != 0:
                raise LeadlineError(f"{name} ended with code {process.returncode}: {_tail(self.home / f'{name}.log')}")

    def end(self, *names: str) -> None:
        """End programs, or all that still run."""
        ending = [self.processes.pop(name) for name in names or tuple(self.processes)]
        for process in ending:
            process.terminate()
        for process in ending:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run_season(plan: SeasonPlan, folder: Path, report: Callable[[str], None] = lambda _: None) -> StationReport:
    """Run a season in an empty folder and return its report.

    Raises:
        LeadlineError: A part is not installed or did not start, or the season did not end in time.
    """
    if reason := why_no_mosquitto() or why_no_slurm():
        raise LeadlineError(f"{reason}; python3 dev field-station installs it where it is allowed to")
    folder.chmod(0o755)
    began_s = time.monotonic()
    with ExitStack() as stack:
        link = stack.enter_context(camera_link())
        access = f"allow_anonymous true\nlistener 1883 {link.host}\n" if link.namespace else "allow_anonymous true\n"
        broker = stack.enter_context(mqtt_broker(folder / "broker", access))
        station = _lay_out(folder, broker, link, report)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        prepared = pool.submit(_prepare, station, plan)
        (folder / "slurm").mkdir()
        station.cluster = stack.enter_context(slurm_cluster(folder / "slurm", PLAN))
        station.environment = {**station.environment, **_cluster_variables(station.cluster)}
        prepared.result()
        report(f"broker, Slurm and the first model are ready after {time.monotonic() - began_s:.0f} s")
        stack.callback(station.end)
        faults = _run_pipeline(station, plan)
    done = subprocess.run(  # noqa: S603 - the example's own programs
        [sys.executable, str(station.home / "score.py"), *plan.words], cwd=station.season, env=station.environment,
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    score = json.loads(done.stdout)
    accuracies = _compare(station, plan, score) if plan.policies else {STATION: score["accuracy"]}
    return read_report(station.home / PIPELINE, score, accuracies, plan.images, time.monotonic() - began_s, faults)


def _compare(station: Station, plan: SeasonPlan, score: Mapping[str, Any]) -> dict[str, float]:
    """Follow the season by each policy in one process, draw all for the pipeline's page; return policy → accuracy.

    The cameras are fast, so many images arrive while a model is trained. The policies get the same number.
    """
    with PipelineJournal(station.season) as journal:
        latency_s = roll_out_s(journal.past_runs("retrain"), journal.past_runs("deploy"))
    training = str(round(plan.rate * latency_s))
    courses = follow_season(plan.seed, plan.strength, "--images", str(plan.images), "--training", training)
    this = {"strength": plan.strength, "policy": STATION, "accuracy": score["accuracy"], "curve": score["curve"]}
    (station.season / "figures").mkdir()
    draw_seasons([*courses, this], station.season / "figures/accuracy.png")
    return {course["policy"]: course["accuracy"] for course in (*courses, this)}


def roll_out_s(retrained: Sequence[Batch], deployed: Sequence[Batch]) -> float:
    """Return the median time from the start of a retraining to the end of its roll-out; the newest runs come first."""
    spans_s = []
    for roll_out in deployed:
        run = next((run for run in retrained if (run.ended_at or "") <= roll_out.created_at), None)
        if run is not None and roll_out.ended_at:
            spans_s.append(epoch_s(roll_out.ended_at) - epoch_s(run.created_at))
    return median(spans_s or [0.0])


def _lay_out(folder: Path, broker: Broker, link: CameraLink, report: Callable[[str], None]) -> Station:
    """Copy the example, as a user would, and name broker and cluster in its pipeline."""
    home = folder / "station"
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns("season", "__pycache__"))
    text = (home / PIPELINE).read_text(encoding="utf-8")
    changes = {"localhost:1883": f"127.0.0.1:{broker.port}", "slurm:cpu": CLUSTER, '"0 * * * *"': '"* * * * *"'}
    for old, new in changes.items():
        if old not in text:
            raise LeadlineError(f"{PIPELINE} of the example has no {old} any more")
        text = text.replace(old, new)
    (home / PIPELINE).write_text(text, encoding="utf-8")
    (home / "season").mkdir()
    environment = {
        **os.environ, "LEADLINE_DATA_DIR": str(folder / "data"), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    return Station(home, environment, broker, link, report)


def _cluster_variables(cluster: SlurmCluster) -> dict[str, str]:
    variables = cluster.environment
    return {**variables, "PATH": os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])}


def _prepare(station: Station, plan: SeasonPlan) -> None:
    """Draw the archive, and train and deploy the first model."""
    station.run("camera.py", *plan.words, "--archive", str(ARCHIVE))
    station.run("train.py", "--first")
    station.run("deploy.py")


def _run_pipeline(station: Station, plan: SeasonPlan) -> tuple[Fault, ...]:
    """Run the season until every image is through all stages; return the faults that were injected."""
    leadline = [sys.executable, "-m", "leadline", "pipeline"]
    pipeline = str(station.home / PIPELINE)
    station.start("runner", [*leadline, "run", pipeline])
    _wait_for(station, (station.season / JOURNAL).exists)
    port = 1883 if station.link.namespace else station.broker.port
    to_broker = ["--broker", f"{station.link.host}:{port}"]
    with PipelineJournal(station.season) as journal:
        # The broker keeps messages for the pipeline from its first connection on. A repeated image counts once.
        while not journal.source_counts().get("images"):
            station.run("camera.py", *plan.words, "--rate", "0", "--count", "1", *to_broker, prefix=station.link.prefix)
            time.sleep(0.2)
        station.start("reviewer", [sys.executable, str(station.home / "review.py"), "--stand-in", *plan.words])
        camera = [*station.link.prefix, sys.executable, str(station.home / "camera.py"), *plan.camera_words, *to_broker]
        station.start("camera", camera)
        injector = FaultInjector(station, journal, plan.images) if plan.faults else None
        _wait_for(station, lambda: _is_through(station, journal, plan, injector))
    station.end("reviewer")
    subprocess.run([*leadline, "stop", pipeline], env=station.environment, check=True)  # noqa: S603 - this program
    station.processes["runner"].wait(60)
    return tuple(injector.faults) if injector else ()


def _is_through(station: Station, journal: PipelineJournal, plan: SeasonPlan, injector: FaultInjector | None) -> bool:
    """Return whether the cameras are done, all images are stored, and no stage has had work for a while."""
    if failed := journal.failed_batches():
        raise LeadlineError(f"run {failed[0].label} failed: {failed[0].reason}")
    if injector is not None and injector.inject_due():
        return False
    if station.processes["camera"].poll() is None:
        return False
    if journal.source_counts()["images"] < plan.images:
        return False
    stages = {"label": ["images"], "retrain": ["drifted"], "evaluate": ["retrain"], "deploy": ["better"]}
    for _ in range(2):
        if journal.open_batches() or any(journal.waiting(stage, on) for stage, on in stages.items()):
            return False
        time.sleep(SETTLED_S / 2)
    return True


def _wait_for(station: Station, is_done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + MOST_S
    while not is_done():
        station.check()
        if time.monotonic() > deadline_s:
            raise LeadlineError(f"the season did not end within {MOST_S:.0f} s: see the logs in {station.home}")
        time.sleep(0.3)


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-600:].strip()


def main() -> int:
    """Run a season and print its report."""
    parser = argparse.ArgumentParser(prog="python3 dev field-station", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"a season of {QUICK.images} images")
    parser.add_argument("--faults", action="store_true", help="restart, kill and cut parts during the season")
    parser.add_argument("--images", type=int, help="number of images")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to this file")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the season's files in this new folder")
    options = parser.parse_args()
    size = QUICK if options.quick else SeasonPlan()
    plan = replace(size, images=options.images or size.images, seed=options.seed, faults=options.faults)
    for number in (signal.SIGINT, signal.SIGTERM):  # daemons end and folders go, also where a shell ignores SIGINT
        signal.signal(number, signal.default_int_handler)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="leadline-season-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        report = run_season(plan, folder.resolve(), print_note)
    except LeadlineError as error:
        sys.stderr.write(f"dev field-station: {error}\n")
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write("".join(f"{line}\n" for line in report_lines(report)))
    if options.json:
        options.json.write_text(report.to_json(), encoding="utf-8")
    return 0 if report.complete else 1


if __name__ == "__main__":
    sys.exit(main())

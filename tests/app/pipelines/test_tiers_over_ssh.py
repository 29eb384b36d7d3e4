"""A tier that is a real Slurm behind a real sshd: copies that are cut off, killed, refused and repeated."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from leadline.app.composition import reload_catalog, toolbox
from leadline.app.jobs.event_log import read_event_log
from leadline.app.jobs.journal import find_jobs, open_journal
from leadline.app.pipelines.plan import plan_pipeline
from leadline.app.pipelines.runs import pipeline_status, run_pipeline, stop_pipeline
from leadline.core.plane import EventKind
from leadline.core.units import MIB
from leadline.pipelines import tier_files
from tests.support.slurm_cluster import PATH
from tests.support.ssh_server import HOST, ssh_server, why_no_sshd

pytest.importorskip("watchfiles")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The nodes are this machine, so a run could read any file here: it reports the folders that it was given.
TRAIN = """
import json, os, sys
events = [json.loads(line) for line in open(os.environ["LEADLINE_PIPELINE_EVENTS"])]
seen = {event["file"]: open(event["file"]).read() for event in events}
with open("models/runs.jsonl", "a") as stream:
    print(json.dumps({"cwd": os.getcwd(), "program": sys.argv[0], "seen": seen}), file=stream)
labels = os.path.getsize("labels/all.csv") if os.path.exists("labels/all.csv") else 0
with open("models/weights", "wb") as stream:
    stream.write(os.urandom(int(sys.argv[1])))
with open(os.environ["LEADLINE_PIPELINE_RESULT"], "w") as stream:
    json.dump({"metrics": {"labels": labels}}, stream)
"""
PIPELINE = f"""
[pipeline]
name = "station"
folder = "season"

[tiers.hpc]
on = "Far:short"
cores = 1
FOLDER

[events.images]
files = "incoming/*.jpg"
settle = "100 ms"

[stages.train]
command = ["{sys.executable}", "{{home}}/train.py", "WEIGHTS"]
on = "images"
batch = {{ most = 5 }}
reads = ["labels"]
writes = ["models"]
"""
SLOW = 40 * MIB
"""A copy of so many bytes takes about five seconds at the limit of ``slow_link``."""
IDLE_S = 2.0


class Station:
    """A pipeline of this machine, and the account on the cluster that it uses."""

    def __init__(self, folder, server):
        self.home, self.server = folder / "home", server
        self.season, self.file = self.home / "season", self.home / "station.toml"
        self.account, self.reports = folder / "account", []
        self.there = self.account / "station"
        (self.season / "incoming").mkdir(parents=True)
        self.account.mkdir()
        (self.home / "train.py").write_text(TRAIN)
        self.write()

    def write(self, *, folder='folder = "station"', weights=10):
        self.file.write_text(PIPELINE.replace("FOLDER", folder).replace("WEIGHTS", str(weights)))

    def arrive(self, *numbers):
        for number in numbers:
            (self.season / "incoming" / f"{number}.jpg").write_text(f"image {number}")

    def label(self, size):
        (self.season / "labels").mkdir(exist_ok=True)
        with (self.season / "labels" / "all.csv").open("ab") as stream:
            stream.write(os.urandom(size))

    def run(self, **more):
        return run_pipeline(self.file, report=self.reports.append, **{"idle_s": IDLE_S, **more})

    def start(self):
        words = [sys.executable, "-m", "leadline", "pipeline", "run", str(self.file)]
        return subprocess.Popen(words, stderr=subprocess.DEVNULL)

    @property
    def runs(self):
        return [json.loads(line) for line in (self.season / "models" / "runs.jsonl").read_text().splitlines()]

    @property
    def copies(self):
        with open_journal() as journal:
            return [event.details for event in journal.events(kinds=[EventKind.STAGED])]

    def moved(self, source="local"):
        return [copy["moved_bytes"] for copy in self.copies if copy["from"] == source]


@pytest.fixture
def station(cluster, tmp_path, monkeypatch):
    if reason := why_no_sshd() or ("" if shutil.which("rsync") else "rsync is not installed here"):
        pytest.skip(reason)
    packages = os.pathsep.join(path for path in sys.path if path)
    variables = {**cluster.environment, "PYTHONPATH": packages, "HOME": str(tmp_path / "account")}
    (tmp_path / "sshd").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    with ssh_server(tmp_path / "sshd", variables) as server, tempfile.TemporaryDirectory(prefix="s") as home:
        write_program(programs / "ssh", f'exec {shutil.which("ssh")} -F {server.config} "$@"')
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{PATH}")
        monkeypatch.setenv("HOME", home)  # of the sockets, whose paths are short
        monkeypatch.setenv("PYTHONPATH", packages)
        monkeypatch.setenv("LEADLINE_DATA_DIR", str(tmp_path / "data"))
        monkeypatch.setattr(tier_files, "RETRY_PAUSES_S", (1.0, 2.0))
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "reach.toml").write_text(
            f'[systems.Far]\nhost = "{HOST}"\nfolder = "{tmp_path}/jobs"\nscheduler = "slurm"\n'
            f'python = "{sys.executable}"\n'
        )
        toolbox.cache_clear()
        reload_catalog()
        yield Station(tmp_path, server)
    toolbox.cache_clear()


@pytest.fixture
def slow_link(station, tmp_path):
    write_program(tmp_path / "programs" / "rsync", f'exec {shutil.which("rsync", path=PATH)} --bwlimit=8m "$@"')


def write_program(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def arriving(folder, least=4 * MIB):
    """Return whether a file of the folder is on its way."""
    with suppress(FileNotFoundError):
        return any(path.stat().st_size >= least for path in folder.glob(".[a-z]*.*") if path.is_file())
    return False


def kill(runner):
    runner.kill()
    runner.wait()


def wait_for(condition, most_s=90.0):
    deadline_s = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.02)


@contextmanager
def meanwhile(function):
    """Call a function in a thread while the context lasts, and raise its error."""
    errors = []

    def call():
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        over.wait()  # a server ends with the thread that has started it

    over, thread = threading.Event(), threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def test_a_run_has_its_files_there_and_its_result_and_folders_come_back(station):
    station.label(300_000)
    (station.home / "notes").mkdir()
    (station.home / "notes" / "plan.txt").touch()
    (station.home / ".secret").touch()
    assert plan_pipeline(station.file).stages[0].forecast.transfer_s is None
    station.arrive(1, 2, 3)
    report = station.run()
    assert (report.completed, report.failed, station.reports) == (1, 0, [])
    (run,) = station.runs
    assert (run["cwd"], run["program"]) == (str(station.there / "data"), str(station.there / "home" / "train.py"))
    assert run["seen"] == {f"incoming/{number}.jpg": f"image {number}" for number in (1, 2, 3)}
    assert pipeline_status(station.file).stages[0].metrics == {"labels": 300_000.0}
    there = {str(path.relative_to(station.there)) for path in station.there.rglob("*") if path.is_file()}
    assert {"home/train.py", "home/notes/plan.txt", "data/labels/all.csv", "data/incoming/1.jpg"} <= there
    assert not {"home/.secret", "home/season/labels/all.csv", "data/events.sqlite"} & there
    assert not list(station.season.glob(".copies/*"))
    assert [(copy["from"], copy["to"]) for copy in station.copies] == [("local", "Far"), ("Far", "local")]
    (job,) = find_jobs(all_jobs=True)
    copies = [event.says for event in read_event_log(job.key, full=True).told if "copied" in event.says]
    assert [copy.partition(": ")[0] for copy in copies] == [
        "files of the run copied from local to Far", "files of the run copied from Far to local",
    ]  # fmt: skip


def test_the_next_run_copies_only_differences_and_a_plan_predicts_its_copies(station):
    station.label(2_000_000)
    station.arrive(1)
    station.run()
    station.label(1000)
    station.arrive(2)
    station.run()
    first, second = station.moved()
    assert first >= 2_000_000
    assert 1000 <= second < 200_000
    stage = plan_pipeline(station.file).stages[0]
    copy = station.copies[0]
    assert stage.reads_bytes == 2_001_000
    assert stage.forecast.transfer_s.low < copy["elapsed_s"] < stage.forecast.transfer_s.high
    assert station.runs[1]["seen"] == {"incoming/2.jpg": "image 2"}


def test_without_a_folder_the_files_lie_below_the_home_folder_there(station):
    station.write(folder="")
    station.arrive(1)
    assert station.run().completed == 1
    (folder,) = (station.account / "leadline").iterdir()
    assert folder.name.startswith("station-")
    assert station.runs[0]["cwd"] == str(folder / "data")
    assert pipeline_status(station.file).stages[0].metrics == {"labels": 0.0}


@pytest.mark.usefixtures("slow_link")
def test_a_copy_that_is_cut_off_resumes_and_the_run_happens_once(station):
    station.label(SLOW)
    station.arrive(1)

    def cut():
        wait_for(lambda: arriving(station.there / "data" / "labels", SLOW // 2))
        station.server.stop()
        wait_for(lambda: not arriving(station.there / "data" / "labels"))
        wait_for(lambda: station.reports)
        station.server.start()

    with meanwhile(cut):
        assert station.run().completed == 1
    assert len(station.runs) == 1
    (told,) = station.reports
    assert told.startswith("run train-1 waits for its files at tier hpc: ")
    assert station.moved()[0] < 0.7 * SLOW
    assert pipeline_status(station.file).stages[0].metrics == {"labels": float(SLOW)}


@pytest.mark.usefixtures("slow_link")
def test_a_runner_that_is_killed_while_it_copies_loses_nothing(station):
    station.label(SLOW)
    station.arrive(1)
    runner = station.start()
    wait_for(lambda: arriving(station.there / "data" / "labels"))
    kill(runner)
    wait_for(lambda: not arriving(station.there / "data" / "labels", 0))
    assert not (station.there / "data" / "labels" / "all.csv").exists()  # the copy ended with the runner
    assert find_jobs(all_jobs=True) == ()
    assert station.run().completed == 1
    assert len(station.runs) == 1
    assert (station.there / "data" / "labels" / "all.csv").read_bytes() == (
        station.season / "labels" / "all.csv"
    ).read_bytes()


@pytest.mark.usefixtures("slow_link")
def test_a_runner_that_is_killed_while_it_fetches_loses_nothing(station):
    station.write(weights=SLOW)
    station.arrive(1)
    runner = station.start()
    wait_for(lambda: arriving(station.season / "models"))
    kill(runner)
    assert pipeline_status(station.file).stages[0].counts.running == 1
    assert station.run().completed == 1
    assert len(station.runs) == 1
    assert len(find_jobs(all_jobs=True)) == 1
    weights = "models/weights"
    assert (station.season / weights).read_bytes() == (station.there / "data" / weights).read_bytes()


@pytest.mark.usefixtures("slow_link")
def test_a_pipeline_can_be_stopped_when_a_result_cannot_be_fetched(station):
    station.write(weights=SLOW)
    station.arrive(1)

    def cut():
        wait_for(lambda: arriving(station.season / "models"))
        station.server.stop()
        wait_for(lambda: station.reports)
        stop_pipeline(station.file)

    with meanwhile(cut):
        report = station.run()
    assert (report.completed, report.left) == (0, 0)
    assert "run train-1 waits for its files at tier hpc: " in station.reports[0]
    station.server.start()
    assert station.run().completed == 1
    assert len(station.runs) == 1
    assert sum(station.moved("Far")) < 1.1 * SLOW


def test_a_run_waits_for_a_host_that_does_not_answer_and_the_pipeline_can_be_stopped_meanwhile(station):
    station.server.stop()
    station.arrive(1)

    def stop():
        wait_for(lambda: station.reports)
        time.sleep(3.0)  # further tries fail, too
        stop_pipeline(station.file)

    with meanwhile(stop):
        report = station.run()
    assert report.completed == 0
    (told,) = station.reports
    assert "run train-1 waits for its files at tier hpc: place cannot be reached by ssh" in told
    station.server.start()
    assert station.run().completed == 1
    assert len(station.runs) == 1


def test_a_full_disk_there_is_said_with_its_fix(station):
    small = station.account / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        station.write(folder='folder = "small"')
        station.label(3 * MIB)
        station.arrive(1)

        def make_room():
            wait_for(lambda: station.reports)
            subprocess.run(["mount", "-o", "remount,size=20m", small], check=True)

        with meanwhile(make_room):
            assert station.run().completed == 1
    finally:
        subprocess.run(["umount", small], check=True)
    (told,) = station.reports
    assert "No space left on device" in told
    assert "; make room there, or give the tier another folder; the next try is in" in told

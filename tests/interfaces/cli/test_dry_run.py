"""A dry run prints the bytes that a submission of the same request sends, and both resolve the request once."""

import json
import os
import shutil
import sqlite3
import stat
import sys

import pytest

from leadline.app import settings
from leadline.app.composition import user_catalog
from leadline.app.jobs import job_request, journal
from leadline.app.jobs.journal import find_jobs, plane_dir
from leadline.core.jobs import JobState
from leadline.interfaces.cli.main import main

RECORD = """#!{python}
import pathlib, subprocess, sys, time
argv, folder = sys.argv[1:], pathlib.Path({folder!r})
number = time.time_ns()
script = pathlib.Path(argv[-1]).read_text() if {name!r} == "qsub" else sys.stdin.read()
(folder / f"{{number}}.argv").write_text("\\0".join([{name!r}, *argv]))
(folder / f"{{number}}.script").write_text(script)
if not {real!r}:
    print("12.server" if {name!r} == "qsub" else "12")
    sys.exit()
sys.exit(subprocess.run([{real!r}, *argv], input=script, text=True).returncode)
"""
pytestmark = pytest.mark.usefixtures("measures")
OPTIONS = ["--time", "2h", "--memory", "100M", "--name", 'a "b"', "--setup", "export A=1"]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Return a function that puts a recorder in the place of a program, and one that returns what it recorded."""
    folder = tmp_path / "recorded"
    (folder / "bin").mkdir(parents=True)

    def record(name, real=""):
        program = folder / "bin" / name
        program.write_text(RECORD.format(python=sys.executable, folder=str(folder), name=name, real=real))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def read():
        files = sorted(folder.glob("*.argv"))
        return [(file.read_text().split("\0"), file.with_suffix(".script").read_text()) for file in files]

    return record, read


def dry_run(capsys, *words):
    """Return (command line, script) of each submission that a dry run shows."""
    assert main(["submit", *words[: words.index("--")], "--dry-run", "--json", *words[words.index("--") :]]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["submit", *words[: words.index("--")], "--dry-run", *words[words.index("--") :]]) == 0
    shown = [document, *document["others"]]
    assert capsys.readouterr().out == "".join(each["script"].removesuffix("\n") + "\n" for each in shown)
    return [(each["argv"], each["script"]) for each in shown]


def submit(capsys, *words):
    assert main(["submit", "-y", *words]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--array", "0-3,7"],
        ["--checkpoint-signal", "USR1", "--checkpoint-before", "5m", "--resumes"],
        ["--no-measure", "--gpus", "2", "--nodes", "2"],
        ["--on", "Slurm2:long", "--copies", "2"],
    ],
    ids=["job", "array", "signal", "unmeasured", "replicas"],
)
def test_sbatch_gets_what_a_dry_run_shows(more, recorded, capsys):
    record, read = recorded
    record("sbatch")
    settings.data_dir().mkdir()
    (settings.data_dir() / "reach.toml").write_text('[systems.Slurm2]\nscheduler = "slurm"\n')
    words = ["--on", "slurm:short", *OPTIONS, *more, "--", "./job", "it's a job"]
    # The second submission follows another job, so its keys are different.
    for _ in range(2):
        shown, before = dry_run(capsys, *words), len(read())
        submit(capsys, *words)
        sent = read()[before:]
        # Replicas are sent to their systems at the same time.
        assert (sorted(sent) == sorted(map(tuple, shown))) if "--copies" in more else (sent == shown)


@pytest.mark.parametrize("flavour", ["pbs", "torque"])
@pytest.mark.parametrize("more", [[], ["--array", "0-3"]], ids=["job", "array"])
def test_qsub_gets_what_a_dry_run_shows(flavour, more, recorded, capsys):
    record, read = recorded
    record("qsub")
    settings.data_dir().mkdir()
    (settings.data_dir() / "reach.toml").write_text(f'[systems.Lab]\nscheduler = "{flavour}"\n')
    words = ["--on", "Lab:batch", *OPTIONS, "--account", "A", *more, "--", "./job", "it's a job"]
    shown = dry_run(capsys, *words)
    assert shown[0][0][-1].endswith(".sh")
    submit(capsys, *words)
    assert read() == shown


@pytest.mark.parametrize("more", [[], ["--array", "0-3"]], ids=["job", "array"])
def test_the_queue_of_this_machine_gets_what_a_dry_run_shows(more, capsys):
    words = ["--on", "local", "--detach", "--time", "1m", *more, "--", "true"]
    ((argv, entry),) = dry_run(capsys, *words)
    assert argv == []
    assert not settings.data_dir().exists()
    submit(capsys, *words)
    with sqlite3.connect(plane_dir() / "local" / "jobs.sqlite") as queue:
        assert queue.execute("SELECT document FROM submission").fetchall() == [(entry,)]
    assert main(["watch"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--array", "1-2"]], ids=["job", "array"])
def test_a_real_slurm_gets_what_a_dry_run_shows_and_runs_it_under_its_key(slurm, more, recorded, capsys, tmp_path):
    # The cluster's user must reach the folder of the test.
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    record, read = recorded
    record("sbatch", shutil.which("sbatch"))
    command = [sys.executable, "-c", "import os; print(os.environ['LEADLINE_KEY'])"]
    words = ["--on", "slurm", "--time", "5m", "--workdir", str(tmp_path), *more, "--", *command]
    shown = dry_run(capsys, *words)
    submit(capsys, *words)
    assert read() == shown
    assert main(["watch"]) == 0
    for job in find_jobs(all_jobs=True):
        (attempt,) = job.attempts
        assert job.state is JobState.COMPLETED
        assert (plane_dir() / "systems" / "slurm" / "runs" / f"{attempt.key}.log").read_text() == f"{attempt.key}\n"


class Counter:
    """Counts the calls of a function or method that it replaces."""

    def __init__(self, monkeypatch, owner, name):
        self.count, original = 0, getattr(owner, name)

        def counted(*args, **more):
            self.count += 1
            return original(*args, **more)

        monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def counters(monkeypatch):
    """Return counters of the journal's openings, of specs, of resolved targets, and of systems that were looked up."""
    return {
        "journals": Counter(monkeypatch, journal.PlaneJournal, "__init__"),
        "specs": Counter(monkeypatch, job_request, "build_job_spec"),
        "targets": Counter(monkeypatch, job_request, "resolve_job_targets"),
        "systems": Counter(monkeypatch, type(user_catalog()), "system"),
    }


def counts_of(counters):
    counts = {name: counter.count for name, counter in counters.items()}
    for counter in counters.values():
        counter.count = 0
    return counts


def test_a_dry_run_resolves_its_request_once(counters, capsys):
    words = ["--on", "Pitzer:gpu", "--account", "A", "--gpus", "1", "--nodes", "1", "--cores", "1", "--memory", "1G"]
    assert main(["submit", *words, "--time", "1h", "--array", "0-3", "--dry-run", "--", "./job"]) == 0
    assert counts_of(counters) == {"journals": 0, "specs": 1, "targets": 1, "systems": 1}


@pytest.mark.usefixtures("measures")
def test_every_verb_opens_the_journal_once(counters, capsys):
    submit(capsys, "--on", "local", "--detach", "--", "true")
    # This machine has no price, so the status of the job needs no system of the catalog.
    assert counts_of(counters) == {"journals": 1, "specs": 1, "targets": 1, "systems": 0}
    for verb in (["jobs"], ["watch"], ["watch", "true"], ["jobs", "--all"], ["explain", "true"], ["plane", "status"]):
        assert main(verb) == 0
        assert counts_of(counters)["journals"] == 1
    submit(capsys, "--on", "local", "--detach", "--", "sleep", "60")
    counts_of(counters)
    assert main(["cancel", "--all", "-y"]) == 0
    assert counts_of(counters)["journals"] == 1

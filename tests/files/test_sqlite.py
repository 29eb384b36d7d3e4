"""SQLite files on full and read-only disks, and the permissions of everything that Leadline keeps."""

import os
import shutil
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from benchmarks.plane.fault_disk import OwnFileSystem
from leadline.app import settings
from leadline.app.jobs.journal import open_journal, plane_dir
from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import EventKind, Job, Place, Policy
from leadline.core.runs import Run
from leadline.execution.clock import ManualClock
from leadline.execution.plane.engine import Plane
from leadline.execution.plane.journal import NewEvent, PlaneJournal
from leadline.execution.schedulers.local.capacity import Slots
from leadline.execution.schedulers.local.scheduler import LocalScheduler
from leadline.execution.schedulers.port import Submission
from leadline.execution.transport.port import LocalTransport
from leadline.history.sqlite import SqliteHistory
from leadline.interfaces.cli.main import main
from tests.support.fake_scheduler import FakeScheduler
from tests.support.plane_parts import FakeAdvisor, diagnose_by_state, retry_node_failures

SPEC = JobSpec("train", ("true",), ResourceSpec(walltime_s=600.0))
NOBODY = 65534


def job(key):
    return Job(key, SPEC, Policy((Place("here"),)), created_at="2026-01-02T03:04:05+00:00")


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Yield a small file system that holds the data folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "leadline-test", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(folder))
    try:
        yield OwnFileSystem(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_can_be_read_and_is_named_in_one_sentence(disk, capsys):
    with open_journal() as journal:
        journal.add([job("a"), job("b")])
    disk.fill(0)
    for words in (["jobs"], ["jobs", "--json"], ["explain", "a"]):
        assert main(words) == 0
        assert "train" in capsys.readouterr().out
    words = ["submit", "--on", "local", "--detach", "-y", "--time", "1m", "--cores", "1", "--memory", "1G"]
    assert main([*words, "--", sys.executable, "-c", "pass"]) == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("leadline submit: disk full: the journal")
    disk.free(0)
    with open_journal() as journal:
        assert [job.key for job in journal.newest_jobs()] == ["b", "a"]


def test_a_read_only_disk_can_be_read(disk, capsys):
    with open_journal() as journal:
        journal.add([job("a")])
    subprocess.run(["mount", "-o", "remount,ro", str(disk.folder)], check=True)
    assert main(["jobs"]) == 0
    assert "train" in capsys.readouterr().out
    assert main(["cancel", "a", "-y"]) == 1
    assert "cannot be used (" in capsys.readouterr().err


def test_a_file_opened_on_a_full_disk_is_written_once_there_is_space(disk):
    with open_journal() as journal:
        journal.add([job("a")])
    disk.fill(0)
    with open_journal() as journal:
        with pytest.raises(LeadlineError, match="disk full"):
            journal.add([job("b")])
        disk.free(0)
        journal.add([job("b")])
        assert len(journal.open_jobs()) == 2


def test_a_file_opened_on_a_full_disk_and_removed_is_not_made_again_by_a_write(disk):
    with open_journal() as journal:
        journal.add([job("a")])
    disk.fill(0)
    with open_journal() as journal:
        disk.free(0)
        journal.path.unlink()
        with pytest.raises(LeadlineError, match="removed or replaced"):
            journal.add([job("b")])
        assert not journal.path.exists()


def test_a_file_that_is_replaced_while_it_is_opened_gets_no_writes(tmp_path, monkeypatch):
    path = tmp_path / "journal.sqlite"
    tables = PlaneJournal.tables[0]
    with PlaneJournal(tmp_path / "other.sqlite") as other:
        other.add([job("a")])

    class Replacing(type(tables)):
        def read_text(self, *_, **__):
            (tmp_path / "other.sqlite").rename(path)
            return tables.read_text()

    monkeypatch.setattr(PlaneJournal, "tables", (Replacing(tables),))
    with PlaneJournal(path) as journal:
        monkeypatch.undo()
        journal.add([job("b")])
    with PlaneJournal(path) as journal:
        assert [found.key for found in journal.newest_jobs()] == ["b", "a"]


def test_a_plane_waits_for_space_and_goes_on(disk):
    clock = ManualClock()
    here = FakeScheduler("here", clock)
    with open_journal() as journal:
        journal.add([job("a")])
    disk.fill(0)
    messages = []
    with open_journal() as journal:
        plane = Plane(
            journal, {"here": here}.__getitem__, FakeAdvisor(), diagnose=diagnose_by_state, decide=retry_node_failures,
            clock=clock,
        )  # fmt: skip
        for _ in range(5):
            clock.sleep(plane.try_step(messages.append))
        assert (len(messages), here.submitted) == (1, [])
        assert "disk full" in messages[0]
        disk.free(0)
        plane.try_step(messages.append)
        assert len(here.submitted) == 1


def test_a_log_that_cannot_be_shared_is_read_with_its_last_writes(disk):
    with PlaneJournal(disk.folder / "plane" / "journal.sqlite") as journal:
        journal.add([job("a")])
        copy = Path(shutil.copytree(disk.folder / "plane", disk.folder / "copy"))
    (copy / "journal.sqlite-shm").unlink()
    assert (copy / "journal.sqlite-wal").stat().st_size
    disk.fill(0)
    with PlaneJournal(copy / "journal.sqlite") as journal:
        assert [job.key for job in journal.open_jobs()] == ["a"]


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def loose_files(folder):
    """Return the files and folders that other users may use."""
    return [path for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_whatever_the_umask_only_the_owner_can_use_what_is_kept(tmp_path, monkeypatch, mask):
    folder = tmp_path / "home" / "data"
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(folder))
    with umask(mask):
        with open_journal() as journal:
            journal.add([job("a")])
            journal.write(events=[NewEvent(EventKind.POLL)])
            assert (plane_dir() / "journal.sqlite-wal").exists()
            assert loose_files(folder) == []
        SqliteHistory(settings.history_path()).add(Run("r", SPEC, JobState.COMPLETED, "2026-01-02T03:04:05+00:00"))
        local = LocalScheduler(plane_dir() / "local", Slots((0,)))
        command = JobSpec("train", (sys.executable, "-c", "print('secret')"), ResourceSpec(cores_per_task=1))
        number = local.submit(Submission("k", command))
        while not local.query([number])[number].state.final:
            local.wait(1.0)
        local.close()
        LocalTransport().write(PurePosixPath(plane_dir() / "scripts" / "job.sh"), "true")
        assert (plane_dir() / "local" / "runs" / "k.log").read_text() == "secret\n"
        assert loose_files(folder) == []
    assert not (folder.parent.stat().st_mode & 0o077)


def test_an_existing_folder_and_its_files_are_tightened(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(folder))
    with open_journal() as journal:
        journal.add([job("a")])
    folder.chmod(0o755)
    (plane_dir() / "journal.sqlite").chmod(0o666)
    folder.chmod(0o755)
    with open_journal():
        assert loose_files(folder) == []


def test_another_user_reads_nothing(tmp_path, monkeypatch):
    if os.geteuid():
        pytest.skip("only root can become another user")
    folder = tmp_path / "data"
    monkeypatch.setenv("LEADLINE_DATA_DIR", str(folder))
    with umask(0), open_journal() as journal:
        journal.add([job("a")])
        for above in (tmp_path, *tmp_path.parents[:2]):
            above.chmod(0o755)
        # Even if the folders were open, the files would not be.
        for path in (folder, plane_dir()):
            path.chmod(0o755)
        words = f"import os; os.setuid({NOBODY}); print(open({str(plane_dir() / 'journal.sqlite')!r}, 'rb').read(4))"
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
    assert done.stdout == ""


def test_the_folder_of_a_file_that_is_missing_stays_missing(tmp_path):
    with pytest.raises(LeadlineError, match="cannot be used"):
        PlaneJournal(Path("/proc/nowhere/journal.sqlite"))
    assert not list(tmp_path.iterdir())


def test_a_file_opened_twice_here_keeps_its_log_while_another_process_opens_and_closes_it(tmp_path):
    # POSIX locks belong to the process: if a second opening drops those of the first, another process takes itself for
    # the only user of the file, and removes the log with all later writes.
    reader = (
        "import sys\nfrom pathlib import Path\nfrom leadline.execution.plane.journal import PlaneJournal\n"
        "with PlaneJournal(Path(sys.argv[1])) as journal:\n    print(len(journal.newest_jobs()))\n"
    )
    path = tmp_path / "journal.sqlite"
    with PlaneJournal(path) as first, PlaneJournal(path) as second:
        for number in range(3):
            (first if number % 2 else second).add([job(f"{number:012}")])
            done = subprocess.run([sys.executable, "-c", reader, str(path)], capture_output=True, text=True, check=True)
            assert done.stdout.strip() == str(number + 1)
            assert path.with_name("journal.sqlite-wal").exists()


def test_a_link_to_itself_is_refused_and_one_to_a_new_file_is_followed(tmp_path):
    loop = tmp_path / "loop.sqlite"
    loop.symlink_to(loop.name)
    with pytest.raises(LeadlineError, match=r"loop\.sqlite"):
        PlaneJournal(loop)
    link = tmp_path / "link.sqlite"
    link.symlink_to("new.sqlite")
    PlaneJournal(link).close()
    assert (tmp_path / "new.sqlite").stat().st_size

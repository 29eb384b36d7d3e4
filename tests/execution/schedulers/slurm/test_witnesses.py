"""Jobs that one query does not show: hidden, renamed, at another cluster, or behind an unclear answer."""

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from leadline.core.errors import SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.units import MIB
from leadline.execution.processes import run_process
from leadline.execution.schedulers.port import Submission
from leadline.execution.schedulers.slurm.scheduler import SlurmScheduler
from leadline.execution.transport.environment import run_without_settings
from leadline.execution.transport.port import LocalTransport
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster, why_no_slurm
from tests.support.slurm_plan import ClusterPlan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]
ORDINARY = 5
"""Id of the user games, whom every Debian has. Slurm 25.11 shows nothing to ``nobody``."""
ASKED = ResourceSpec(cores_per_task=1, memory_bytes_per_node=50 * MIB, walltime_s=240.0)
RENAMES = """\
function slurm_job_submit(job, partitions, user)
  if string.match(job.name, "^renamed") then job.name = "site_7"; job.comment = "billed" end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
"""


@dataclass(frozen=True, slots=True)
class AsOrdinary:
    """Runs commands as an ordinary user, to whom a hidden partition is hidden."""

    def __call__(self, argv, **options):
        prefix = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
        return run_without_settings([*prefix, *argv], **options)


@dataclass(frozen=True, slots=True)
class Unclear:
    """A runner to whom one command gives an error that says nothing about the job."""

    command: str

    def __call__(self, argv, **options):
        if argv[0] == self.command:
            return CompletedProcess(1, "", f"{argv[0]}: error: Access/permission denied")
        return run_without_settings(argv, **options)


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[SlurmCluster, SlurmCluster]]:
    """Two clusters with one accounting; east hides a partition and renames jobs."""
    with tempfile.TemporaryDirectory(prefix="clusters-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("east", "west"):
            (folder / part).mkdir()
        (folder / "east" / "job_submit.lua").write_text(RENAMES)
        settings = ("PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=60", "JobSubmitPlugins=lua", "PrivateData=jobs")
        with slurm_cluster(folder / "east", ClusterPlan(name="east", nodes=1, settings=settings)) as east:
            assert east.run(["sacctmgr", "-i", "-Q", "add", "cluster", "west"]).returncode == 0
            shared = (
                f"AuthInfo=socket={east.folder}/munge.sock,cred_expire=15",
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=127.0.0.1",
                f"AccountingStoragePort={east.layout.database_port}",
                f"AccountingStoragePass={east.folder}/munge.sock",
            )
            plan = ClusterPlan(name="west", nodes=1, accounting=False, settings=shared)
            with slurm_cluster(folder / "west", plan) as west:
                yield east, west


@pytest.fixture
def east(clusters, monkeypatch):
    for name, value in clusters[0].environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    return clusters[0]


@pytest.fixture
def folder():
    # the wrapper of a job that ended may still write while the folder is removed
    with tempfile.TemporaryDirectory(prefix="jobs-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o777)
        yield PurePosixPath(name, "of an ordinary user")


def scheduler_of(folder, processes=run_without_settings):
    return SlurmScheduler("east", folder, LocalTransport(processes), python=sys.executable)


def submission(*command, name="nap", partition="short", measured=False, indices=()):
    spec = JobSpec(name, command, ASKED, partition=partition)
    return Submission(uuid.uuid4().hex[:12], spec, indices, measured=measured)


def until(ask, condition, most_s=60.0):
    deadline = time.monotonic() + most_s
    while not condition(answer := ask()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)
    return answer


def keys_of(sent):
    return dict.fromkeys(sent.keys, sent.key)


@pytest.mark.usefixtures("east")
def test_a_job_in_a_hidden_partition_is_there_whatever_the_user_has_set(folder, monkeypatch):
    for name, value in {"SQUEUE_PARTITION": "short", "SQUEUE_STATES": "CD", "SACCT_FORMAT": "jobid",
                        "SBATCH_HOLD": "1", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "64"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    scheduler = scheduler_of(folder, AsOrdinary())
    sent = submission("sleep", "60", partition="hidden")
    job = scheduler.submit(sent)
    until(lambda: scheduler.query([job])[job].state, lambda state: state is JobState.RUNNING)
    assert scheduler.find([sent.key]) == {sent.key: job}
    assert list(scheduler.forgotten(keys_of(sent), {sent.key: job}, ())) == []
    scheduler.cancel([job])
    ended = until(lambda: scheduler.account([job]).get(job), lambda status: status is not None and status.state.final)
    assert (ended.state, ended.by_owner) == (JobState.CANCELLED, True)


@pytest.mark.usefixtures("east")
@pytest.mark.parametrize("indices", [(), (3,)])
def test_a_job_that_the_site_renames_is_found_and_reports_under_its_key(folder, indices):
    sent = submission("sleep", "2", name="renamed", measured=True, indices=indices)
    job = scheduler_of(folder).submit(sent)
    number = f"{job}_3" if indices else job
    scheduler = scheduler_of(folder)  # as after a restart
    assert scheduler.find([sent.key]) == {sent.key: job}
    assert scheduler.query([number])[number].bears(sent.key)
    ended = until(lambda: scheduler.account([number]).get(number), lambda status: status and status.state.final)
    assert (ended.state, ended.bears(sent.key)) == (JobState.COMPLETED, True)
    # The accounting lists a job as "allocation" until it has the record of its start.
    until(lambda: scheduler._queries("").accounting([number]).get(number), lambda row: row and row.bears(sent.key))
    assert set(scheduler.reports(sent.keys)) == set(sent.keys)
    assert list(scheduler.forgotten(keys_of(sent), dict.fromkeys(sent.keys, number), ())) == []


def test_a_job_counts_as_forgotten_only_if_no_witness_is_unclear(east, folder):
    scheduler = scheduler_of(folder)
    scheduler.submit(submission("true"))
    keys, ids = {"gone": "gone"}, {"gone": "424242"}
    assert list(scheduler.forgotten(keys, ids, ())) == ["gone"]
    for command in ("squeue", "sacct", "scontrol"):
        with pytest.raises(SchedulerUnreachable):
            scheduler_of(folder, Unclear(command)).forgotten(keys, ids, ())
    # Where users may not use scontrol, jobs are settled all the same.
    sent = submission("false")
    job = scheduler.submit(sent)
    mute = scheduler_of(folder, Unclear("scontrol"))
    until(lambda: mute.account([job]).get(job), lambda status: status is not None and status.state is JobState.FAILED)
    # A held job that no key search shows, for example because its trace was cut, has a record under its id.
    held = run_process(["sbatch", "--parsable", "-H", "-J", "x-gone", "-o", "/dev/null", "--wrap", "true"])
    job = held.stdout.strip()
    assert list(scheduler.forgotten({"x": "other"}, {"x": job}, ())) == ["x"], "another job has that id now"
    assert list(scheduler.forgotten(keys, {"gone": job}, ())) == []
    assert east.run(["scancel", job]).returncode == 0


@pytest.mark.usefixtures("east")
def test_a_job_at_another_cluster_keeps_it_in_its_id(folder, monkeypatch):
    monkeypatch.setenv("SLURM_CLUSTERS", "west")
    monkeypatch.setenv("SBATCH_ACCOUNT", "research")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    scheduler = scheduler_of(folder)
    sent = submission("sleep", "60", indices=(2, 5))
    text = scheduler.render(sent)
    assert {"--clusters=west", "--account=research", "--time=00:04:00"} <= set(text.argv)
    assert "#SBATCH --clusters=west\n" in text.script
    job = scheduler.submit(sent)
    assert job.startswith("west:")
    ids = [f"{job}_2", f"{job}_5"]
    until(lambda: scheduler.query(ids), lambda found: len(found) == 2 and found[ids[0]].state is JobState.RUNNING)
    assert scheduler.find([sent.key]) == {sent.key: job}
    scheduler.change_walltime(ids[0], 120.0)
    assert scheduler.query(ids)[ids[0]].walltime_s == 120.0
    assert list(scheduler.forgotten(keys_of(sent), dict(zip(sent.keys, ids, strict=True)), ())) == []
    scheduler.cancel(ids)
    ended = until(lambda: scheduler.account(ids), lambda found: len(found) == 2 and found[ids[1]].state.final)
    assert {status.state for status in ended.values()} == {JobState.CANCELLED}


@pytest.mark.usefixtures("east")
@pytest.mark.parametrize("indices", [(), (3,)])
def test_a_living_job_is_listed_with_its_key_although_the_site_renames_it(folder, indices):
    sent = submission("sleep", "60", name="renamed", indices=indices)
    job = scheduler_of(folder).submit(sent)
    number = f"{job}_3" if indices else job
    scheduler = scheduler_of(folder)
    listed = {found.key: (found.scheduler_id, found.batch, found.index) for found in scheduler.living()}
    assert listed[sent.keys[0]] == (number, sent.key, 3 if indices else None)
    scheduler.cancel([job])
    until(scheduler.living, lambda found: sent.keys[0] not in {one.key for one in found})


@pytest.mark.usefixtures("east")
@pytest.mark.parametrize("indices", [(), (3, 4)])
def test_a_job_at_another_cluster_is_found_by_a_process_without_the_users_wishes(folder, monkeypatch, indices):
    monkeypatch.setenv("SLURM_CLUSTERS", "west")
    sent = submission("sleep", "60", indices=indices)
    job = scheduler_of(folder).submit(sent)
    monkeypatch.delenv("SLURM_CLUSTERS")
    here = submission("sleep", "60", indices=indices)
    scheduler = scheduler_of(folder)
    number = scheduler.submit(here)
    assert until(lambda: scheduler.find([sent.key, "0" * 12]), bool) == {sent.key: job}
    ends = [f"_{index}" for index in indices] or [""]
    ids = {**dict(zip(sent.keys, (f"{job}{end}" for end in ends), strict=True)),
           **dict(zip(here.keys, (f"{number}{end}" for end in ends), strict=True))}  # fmt: skip
    listed = {found.key: found.scheduler_id for found in scheduler.living()}
    assert {key: listed[key] for key in ids} == ids
    monkeypatch.setenv("SLURM_CLUSTERS", "west")
    elsewhere = until(lambda: scheduler_of(folder).find([here.key]), bool)
    assert elsewhere == {here.key: f"east:{number}"}
    scheduler.cancel([job, number])


def test_a_federated_job_is_followed_to_the_sibling_that_runs_it(clusters, east, folder):
    _, west = clusters
    node = east.nodes[0]
    for words in (
        ["sacctmgr", "-i", "-Q", "add", "federation", "compass", "clusters=east,west"],
        ["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test"],
    ):
        assert east.run(words).returncode == 0
    scheduler = scheduler_of(folder)
    until(lambda: east.run(["scontrol", "show", "federation"]).stdout, lambda text: "compass" in text)
    sent = submission("sleep", "60")
    job = scheduler.submit(sent)
    status = until(lambda: scheduler.query([job])[job], lambda found: found.state is JobState.RUNNING)
    assert (status.node, status.bears(sent.key)) == (west.nodes[0], True)
    assert list(scheduler.forgotten(keys_of(sent), {sent.key: job}, ())) == []
    scheduler.cancel([job])
    ended = until(lambda: scheduler.account([job]).get(job), lambda found: found is not None and found.state.final)
    assert (ended.state, ended.by_owner) == (JobState.CANCELLED, True)

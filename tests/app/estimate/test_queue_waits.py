import io
import random
import time

import pytest

from leadline.app.estimate.queue_waits import VALID_S, add_waits, learn_queue, read_queues
from leadline.core.errors import InvalidInput, SchedulerUnreachable, UnknownName
from leadline.core.estimate import Basis, Estimate, Interval, Target, Tier
from leadline.core.hardware import Device, DeviceKind
from leadline.core.jobs import ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.queues import AccountedJob
from leadline.core.systems import NodeType, Partition, System
from leadline.core.units import GIB
from leadline.estimators.queue_wait import accounting_at
from leadline.execution.processes import run_process
from leadline.history.sacct import DELIMITER, SACCT_ENVIRONMENT, read_sacct, sacct_command
from leadline.recommendation.feasibility import PlacementCandidate

PITZER = System("Pitzer", "OSC", "hpc", "production", "slurm")


class Catalog:
    def system(self, name):
        if name.lower() != "pitzer":
            raise UnknownName("system", name, ["Pitzer"])
        return PITZER


def accounting(count=300, *, now_s=0.0):
    """Return what is known of jobs when the last came: in ``busy`` they wait an hour or two, in ``idle`` not."""
    draw, jobs = random.Random(3), []  # noqa: S311 - a made-up load
    for number in range(count):
        submitted = now_s + 300.0 * number
        partition = draw.choice(["busy", "idle"])
        started = submitted + (draw.uniform(3600, 7200) if partition == "busy" else draw.uniform(0, 5))
        jobs.append(
            AccountedJob(
                str(number),
                submitted,
                started,
                started + 1800.0,
                user="ada",
                partition=partition,
                cores=4,
                walltime_s=3600.0,
            )
        )
    return accounting_at(jobs, now_s + 300.0 * count)


def as_text(jobs):
    return "".join(
        DELIMITER.join(
            (
                job.id,
                *(
                    "Unknown" if at_s is None else f"{at_s:.0f}"
                    for at_s in (job.submitted_s, job.submitted_s, job.started_s, job.ended_s)
                ),
                job.state.value,
                job.user,
                "",
                job.partition,
                "",
                "1",
                str(job.cores),
                "",
                "60",
                "a\nname",
            )
        )
        + "\n"
        for job in jobs
    )


def candidate(partition):
    node = NodeType("node", cores=4)
    estimate = Estimate(Target("CPU"), "test", Basis(Tier.SPECS), elapsed_s=Interval(600.0, 500.0, 700.0))
    return PlacementCandidate(
        PITZER,
        Partition(partition, node),
        Device("CPU", "x", DeviceKind.CPU, memory_bytes=GIB),
        estimate,
        ResourceSpec(cores_per_task=4, walltime_s=3600.0),
    )


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setattr("leadline.app.settings.data_dir", lambda: tmp_path / "data")


def test_requests_wait_as_jobs_of_their_partition_did(tmp_path):
    file = tmp_path / "sacct.txt"
    file.write_text(as_text(accounting()))
    timed, notes = add_waits([candidate("busy"), candidate("idle")], read_queues([f"pitzer={file}"], Catalog()))
    busy, idle = (one.wait for one in timed)
    assert 3600 <= busy.wait_s.point <= 7200
    assert idle.wait_s.point <= 60
    assert idle.at_once > 0.8
    assert busy.at_once < 0.2
    assert notes == ("waits at Pitzer are those of its queue at 1970-01-02 00:55 UTC",)


def test_waits_are_unknown_without_accounting():
    queue = learn_queue("Pitzer", accounting())
    other = candidate("idle")
    elsewhere = PlacementCandidate(
        System("Expanse", "SDSC", "hpc", "production", "slurm"),
        other.partition,
        other.device,
        other.estimate,
        other.request,
    )
    timed, notes = add_waits([candidate("unheard"), elsewhere], {"Pitzer": queue})
    assert [one.wait for one in timed] == [None, None]
    assert notes == ("waits in unheard of Pitzer are unknown: the accounting has no started job there",)


def test_a_wait_model_is_cached_for_a_day():
    first = learn_queue("Pitzer", accounting())
    again = learn_queue("Pitzer", [*accounting(), *accounting(3, now_s=100_000.0)])
    assert first.learned.learned_until_s == again.learned.learned_until_s
    later = learn_queue("Pitzer", [*accounting(), *accounting(3, now_s=100_000.0 + VALID_S)])
    assert later.learned.learned_until_s > first.learned.learned_until_s + VALID_S / 2


def test_a_damaged_cache_is_fitted_again(tmp_path):
    learn_queue("Pitzer", accounting())
    (kept,) = (tmp_path / "data" / "waits").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert learn_queue("Pitzer", accounting()).learned.plain.jobs > 200


def test_an_accounting_is_read_from_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(as_text(accounting()).encode())))
    assert {"Pitzer"} == set(read_queues(["Pitzer=-"], Catalog()))


@pytest.mark.parametrize(
    ("shown", "why"),
    [("Pitzer=", "has no file name"), ("Pitzer=/nowhere", "/nowhere cannot be read"), ("Nowhere=x", "Nowhere")],
)
def test_unreadable_accounting_is_refused(shown, why):
    with pytest.raises((InvalidInput, UnknownName), match=why):
        read_queues([shown], Catalog())


def test_sacct_of_this_machine_lists_jobs_of_all_users_in_epoch_seconds():
    asked = []

    def runner(argv, *, env=None, cwd=None, timeout_s=None):
        asked.append((argv, env))
        return CompletedProcess(0, as_text(accounting()), "")

    assert {"Pitzer"} == set(read_queues(["Pitzer"], Catalog(), runner))
    assert [(sacct_command(60), {"SLURM_TIME_FORMAT": "%s"})] == asked


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            CompletedProcess(1, "", "first\nslurm_persist_conn_open: refused\n"),
            r"\(slurm_persist_conn_open: refused\): on",
        ),
        (CompletedProcess(-15, "", "", timed_out=True), "no answer within 300 s"),
        (CompletedProcess(7, "", ""), "exit code 7"),
    ],
)
def test_a_failing_sacct_is_reported_as_unreachable(answer, says):
    with pytest.raises(SchedulerUnreachable, match=says):
        read_queues(["Pitzer"], Catalog(), lambda *_, **__: answer)


def test_without_sacct_the_error_proposes_a_file(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput, match=r"needs sacct, which is not on this machine: .* --waits Pitzer=FILE"):
        read_queues(["Pitzer"], Catalog())


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
def test_the_waits_of_a_real_slurm_are_learned_from_its_own_sacct():
    array = [
        "sbatch",
        "--parsable",
        "--wait",
        "--output=/dev/null",
        "--ntasks=1",
        "--mem=50",
        "--time=1",
        "--wrap=true",
    ]
    for _ in range(2):
        done = run_process([*array, "--array=0-139"], timeout_s=200)
        assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    while (
        sum(job.ended_s is not None for job in read_sacct(run_process(sacct_command(1), env=SACCT_ENVIRONMENT).stdout))
        < 280
    ):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    timed, notes = add_waits([candidate("short")], read_queues(["Pitzer"], Catalog()))
    wait = timed[0].wait
    assert 0 <= wait.wait_s.low <= wait.wait_s.point <= wait.wait_s.high < 600
    assert "those of its queue at" in notes[0]


def test_too_short_an_accounting_is_refused(tmp_path):
    file = tmp_path / "sacct.txt"
    file.write_text(as_text(accounting(20)))
    with pytest.raises(InvalidInput, match="200 jobs that started or more, and this accounting has 12"):
        read_queues([f"Pitzer={file}"], Catalog())
    file.write_text("")
    with pytest.raises(InvalidInput, match="has no jobs"):
        read_queues([f"Pitzer={file}"], Catalog())

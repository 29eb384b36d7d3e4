"""Job arrays on a real Slurm: measured, settled by the accounting, cancelled, and never submitted twice."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from leadline.core.errors import LeadlineError
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.processes import CompletedProcess
from leadline.core.units import MIB
from leadline.execution.processes import run_process
from leadline.execution.schedulers.job_queue import QueueJournal
from leadline.execution.schedulers.slurm.array_queue import ArrayPollIntervals, SlurmArrayQueue

pytestmark = pytest.mark.usefixtures("slurm")

QUICK = ArrayPollIntervals(first=0.3, last=1.0, silence=3.0, unreachable=2.0)
APPENDS = "import sys, time; time.sleep(float(sys.argv[2])); open('ran', 'a').write(sys.argv[1])"
ASKED = ResourceSpec(cores_per_task=1, memory_bytes_per_node=200 * MIB, walltime_s=300.0)
DIES = """
import os, sys
from pathlib import Path
from leadline.execution.schedulers.job_queue import QueueJournal
from leadline.execution.processes import run_process
from leadline.execution.schedulers.slurm.array_queue import SlurmArrayQueue

def run(words, **options):
    if words[0] == "sbatch" and sys.argv[2] == "before":
        os.kill(os.getpid(), 9)
    answer = run_process(words, **options)
    if words[0] == "sbatch":
        os.kill(os.getpid(), 9)
    return answer

folder = Path(sys.argv[1])
with QueueJournal(folder / "journal.sqlite") as journal:
    queue = SlurmArrayQueue(journal, folder, run)
    queue.resume()
    queue.start(journal.entries())
"""


@pytest.fixture
def journal(tmp_path):
    with QueueJournal(tmp_path / "journal.sqlite") as opened:
        yield opened


@pytest.fixture
def queue(journal, tmp_path):
    made = SlurmArrayQueue(journal, tmp_path, run_process, intervals=QUICK)
    made.resume()
    return made


def jobs(tmp_path, count, *, pause=0.0, resources=ASKED, code=APPENDS):
    return [
        (f"job{number}", JobSpec("naps", (sys.executable, "-c", code, str(number), str(pause)), resources,
                                 partition="short", workdir=str(tmp_path)), "")
        for number in range(count)
    ]  # fmt: skip


def until_all_ended(queue, seconds=60):
    deadline, ended = time.monotonic() + seconds, {}
    while queue.running:
        assert time.monotonic() < deadline, "waited too long"
        ended.update({entry.key: entry for entry in queue.wait(0.1)})
    return ended


def arrays(tmp_path):
    """Return the ids of the arrays that this test's folder has at Slurm."""
    keys = [path.stem for path in (tmp_path / "arrays").glob("*.json")]
    listed = subprocess.run(["squeue", "-h", "-t", "all", "-o", "%F|%j"], capture_output=True, text=True, check=True)
    rows = [line.split("|") for line in listed.stdout.splitlines()]
    return {number for number, name in rows if any(name.endswith(key) for key in keys)}


def test_each_shape_is_one_array_and_every_element_is_measured(queue, journal, tmp_path):
    bigger = replace(ASKED, cores_per_task=2)
    threads = "import os, sys; open(f'threads{sys.argv[1]}', 'w').write(os.environ['OMP_NUM_THREADS'])"
    journal.add(jobs(tmp_path, 3) + [(f"big{key}", spec, "") for key, spec, _ in
                                     jobs(tmp_path, 2, resources=bigger, code=threads)])  # fmt: skip
    assert queue.start(journal.entries()) == 5
    ended = until_all_ended(queue)
    assert {JobState.COMPLETED} == {entry.state for entry in ended.values()}
    assert all(entry.outcome.measured["elapsed_s"].value > 0 for entry in ended.values())
    assert "".join(sorted((tmp_path / "ran").read_text())) == "012"
    assert (tmp_path / "threads1").read_text() == "2"
    assert len(arrays(tmp_path)) == 2


def test_failures_and_limits_give_the_matching_state(queue, journal, tmp_path):
    code = (
        "import os, sys, time; n = sys.argv[1]\n"
        "if n == '0': sys.exit('no data')\n"
        "if n == '1': time.sleep(60)\n"
        "if n == '2': os.kill(os.getppid(), 9)\n"
        "if n == '3': block = bytearray(b'x') * (300 << 20); time.sleep(60)"
    )
    journal.add((key, replace(spec, resources=replace(ASKED, walltime_s=3.0)), note)
                for key, spec, note in jobs(tmp_path, 4, code=code))  # fmt: skip
    queue.intervals = replace(QUICK, silence=60.0)  # the accounting may come late, and no element may be made again
    queue.start(journal.entries())
    ended = until_all_ended(queue, 120)
    failed, timed_out, killed, too_big = (ended[f"job{number}"] for number in range(4))
    assert (failed.state, failed.outcome.exit_code) == (JobState.FAILED, 1)
    assert (tmp_path / "runs" / "job0-1.log").read_text() == "no data\n"
    assert JobState.TIMEOUT is timed_out.state
    assert JobState.FAILED is killed.state
    assert "Slurm ended it" in killed.outcome.reason
    assert JobState.OUT_OF_MEMORY is too_big.state


def test_the_number_of_running_elements_is_limited(journal, tmp_path):
    queue = SlurmArrayQueue(journal, tmp_path, run_process, max_running=1, intervals=QUICK)
    queue.resume()
    code = "import sys, time; open('log', 'a').write('(' ); time.sleep(0.3); open('log', 'a').write(')')"
    journal.add(jobs(tmp_path, 3, code=code))
    queue.start(journal.entries())
    until_all_ended(queue)
    assert (tmp_path / "log").read_text() == "()()()"


@pytest.mark.parametrize(("moment", "arrays_left"), [("before", 0), ("after", 1)])
def test_an_array_is_submitted_once_though_its_submission_is_killed(moment, arrays_left, journal, tmp_path):
    journal.add(jobs(tmp_path, 2))
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path), moment], check=False)
    assert died.returncode == -signal.SIGKILL
    assert {JobState.RUNNING} == {entry.state for entry in journal.entries()}
    assert arrays_left == len(arrays(tmp_path))
    queue = SlurmArrayQueue(journal, tmp_path, run_process, intervals=QUICK)
    queue.resume()
    assert 2 * arrays_left == len(queue.running)
    queue.start(entry for entry in journal.entries() if entry.state is JobState.PENDING)
    until_all_ended(queue)
    assert "".join(sorted((tmp_path / "ran").read_text())) == "01"
    assert len(arrays(tmp_path)) == 1


def test_the_end_cancels_and_requeues_running_and_waiting_jobs(journal, tmp_path):
    queue = SlurmArrayQueue(journal, tmp_path, run_process, max_running=1, intervals=QUICK)
    queue.resume()
    journal.add(jobs(tmp_path, 3, pause=60.0))
    queue.start(journal.entries())
    deadline = time.monotonic() + 20
    while not list((tmp_path / "runs").glob("*.log")) and time.monotonic() < deadline:
        queue.wait(0.1)
    queue.end()
    ended = until_all_ended(queue)
    assert {JobState.PENDING} == {entry.state for entry in ended.values()}
    assert {JobState.PENDING} == {entry.state for entry in journal.entries()}


def test_a_job_that_somebody_cancels_is_cancelled(queue, journal, tmp_path):
    journal.add(jobs(tmp_path, 1, pause=60.0))
    queue.start(journal.entries())
    subprocess.run(["scancel", *arrays(tmp_path)], check=True)
    assert JobState.CANCELLED is until_all_ended(queue)["job0"].state


def test_without_accounting_a_lost_element_is_tried_again_and_fails_in_the_end(journal, tmp_path):
    def run(words, **options):
        if words[0] == "sacct":
            return CompletedProcess(1, "", "Slurm accounting storage is disabled")
        return run_process(words, **options)

    queue = SlurmArrayQueue(journal, tmp_path, run, intervals=replace(QUICK, silence=0.5))
    queue.resume()
    journal.add(jobs(tmp_path, 1, code="import os; os.kill(os.getppid(), 9)"))
    for _ in range(3):
        queue.start(entry for entry in journal.entries() if entry.state is JobState.PENDING)
        ended = until_all_ended(queue)
    assert JobState.FAILED is ended["job0"].state
    assert "Slurm lost it 3 times" in ended["job0"].outcome.reason
    assert ended["job0"].attempt == 3


def test_a_refusal_of_slurm_is_reported_and_can_be_retried(queue, journal, tmp_path):
    journal.add((key, replace(spec, partition="nowhere"), note) for key, spec, note in jobs(tmp_path, 1))
    with pytest.raises(LeadlineError, match=r"Slurm refused the array \(.*[Ii]nvalid partition.*its script is"):
        queue.start(journal.entries())
    assert [entry.state for entry in journal.entries()] == [JobState.PENDING]
    script = next((tmp_path / "arrays").glob("*.sh")).read_text()
    assert "#SBATCH --partition=nowhere\n" in script
    assert len(json.loads(next((tmp_path / "arrays").glob("*.json")).read_text())) == 1


def test_jobs_of_this_machine_are_not_taken_for_slurms(queue, journal, tmp_path):
    journal.add(jobs(tmp_path, 1))
    journal.begin("job0", host=os.uname().nodename)
    with pytest.raises(LeadlineError, match="and not on Slurm"):
        queue.resume()

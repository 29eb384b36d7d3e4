"""Which jobs are listed."""

from leadline.app.jobs.job_status import job_statuses
from leadline.app.jobs.journal import open_journal
from leadline.core.jobs import JobSpec, JobState, ResourceSpec
from leadline.core.plane import Job, Place, Policy


def test_a_limit_holds_for_active_jobs_as_for_all(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    spec, policy = JobSpec("train", ("true",), ResourceSpec()), Policy((Place("Pitzer"),))
    states = [JobState.PENDING] * 5 + [JobState.COMPLETED]
    jobs = [
        Job(f"job-{number}", spec, policy, state=state, recorded=state.final) for number, state in enumerate(states)
    ]
    with open_journal() as journal:
        journal.add(jobs)
        journal.write(jobs=jobs)
    assert [status.key for status in job_statuses(limit=2)] == ["job-4", "job-3"]
    assert [status.key for status in job_statuses(all_jobs=True, limit=2)] == ["job-5", "job-4"]
    assert len(job_statuses()) == 5

"""``leadline approve``: let a prediction restart running jobs."""

from leadline.app.jobs.job_status import job_statuses
from leadline.app.jobs.journal import approve_jobs, keep_journal_open
from leadline.interfaces.cli.command import argument, command, json_option
from leadline.interfaces.cli.jobs import JOBS, print_jobs
from leadline.interfaces.cli.output import print_note


@command("approve")
@argument(*JOBS, required=True, nargs=-1)
@json_option
@keep_journal_open()
def approve(names: tuple[str, ...], *, json: bool) -> None:
    """Let a prediction restart jobs with a larger request, as submit --may-restart does.

    Without it, a job that will exceed its request runs on until the scheduler ends it. leadline explain shows when a
    prediction would restart a job.
    """
    approved = [job.key for job in approve_jobs(names)]
    if json:
        print_jobs(job_statuses(approved), json=True)
    elif approved:
        print_note(f"a prediction may restart {', '.join(approved)}")
    else:
        print_note("nothing to approve: these jobs have ended")

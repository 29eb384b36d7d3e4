"""PBS as a scheduler of the plane, on this machine or over SSH."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec, JobState
from leadline.core.processes import CompletedProcess
from leadline.execution.schedulers.attempt_files import SiteScheduler
from leadline.execution.schedulers.pbs.parsing import (
    JobAttributes,
    array_id,
    ended_without_status,
    job_key,
    job_status,
    pbs_id,
    read_job_id,
    read_living,
    read_qstat_json,
    read_qstat_text,
    short_id,
    status_from_wrapper,
)
from leadline.execution.schedulers.pbs.script import PbsFlavour, format_walltime, job_script, qsub_options
from leadline.execution.schedulers.port import (
    LivingJob,
    RequestRefused,
    SchedulerBusy,
    SchedulerStatus,
    Submission,
    SubmissionText,
    SubmissionUncertain,
)
from leadline.execution.transport.port import NO_PROGRAM, ConnectionLost, Transport
from leadline.files.sqlite import chunks

COMMAND_S = 60.0
"""Time limit of one command."""
AT_ONCE = 200
"""Ids on one command line."""
_GONE = re.compile(
    r"unknown job|job has finished|invalid job ?id|request invalid for state of job|already", re.IGNORECASE
)
_AWAY = re.compile(
    r"cannot connect|connection refused|unable to contact|no route to host|unknown host|cannot resolve|"
    r"no permitted server|problem loading",
    re.IGNORECASE,
)
_CUT = re.compile(r"end of file|timed out|communication failure|protocol (error|failure)|premature", re.IGNORECASE)
_FULL = re.compile(
    r"would exceed|maximum number of|limit on (the )?number|too many|temporarily unavailable|MaxSubmitJob",
    re.IGNORECASE,
)


@dataclass(eq=False)
class PbsScheduler(SiteScheduler):
    """A PBS (implements ``Scheduler``).

    ``flavour`` selects the dialect. Times are read in this machine's time zone. PBS has no start prediction without
    submission and no signal before the limit, so the wrapper sends it. Torque forgets a job minutes after its end.
    """

    flavour: PbsFlavour = field(default=PbsFlavour.PRO, kw_only=True)

    def render(self, submission: Submission) -> SubmissionText:
        """Return the qsub command and the file that it reads."""
        if submission.specs:
            raise InvalidInput("the elements of an array have one command at PBS: submit them one by one")
        # The file stays, so that users can see what was submitted.
        script = self.folder / "jobs" / f"{submission.key}.sh"
        # PBS's own output must not mix with the job's, which has a fixed name.
        options = qsub_options(submission, self.flavour, script.with_suffix(".out"))
        text = job_script(submission, self.folder, python=self.python)
        return SubmissionText(("qsub", *options, str(script)), text)

    def submit(self, submission: Submission) -> str:
        """Write the script and pass it to qsub."""
        text = self.render(submission)
        script = PurePosixPath(text.argv[-1])
        self.transport.write(script, text.script)
        try:
            answer = self._run(text.argv)
        except ConnectionLost as error:
            raise SubmissionUncertain(str(error)) from error
        output = _text(answer)
        was_cut = answer.timed_out or (answer.returncode != 0 and _CUT.search(output))
        if answer.returncode != 0 and not was_cut:
            refusal = SchedulerBusy if _FULL.search(output) else RequestRefused
            raise refusal(f"PBS refused job {submission.spec.name!r} ({output}): its script is {script}")
        if was_cut or (job_id := read_job_id(answer.stdout)) is None:
            problem = "did not answer in time" if was_cut else "named no job"
            raise SubmissionUncertain(f"qsub {problem} ({output}): look the job up before it is submitted again")
        return job_id

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key -> id by the jobs' names, also from the history of PBS Professional."""
        ids = {job_key(job): array_id(number) for number, job in self._listed([]).items()}
        return {key: ids[key] for key in keys if key in ids}

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask qstat; an array's id means its elements. Jobs with an unclear end are absent."""
        return {number: job_status(job) for number, job in self._jobs(ids).items() if not ended_without_status(job)}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return the states of ended jobs.

        They come from PBS Professional's history or Torque's last minutes. If PBS does not know how a job ended, its
        wrapper's outcome counts.
        """
        jobs = self._jobs(ids)
        statuses = {number: job_status(job) for number, job in jobs.items()}
        keys = {job_key(job): number for number, job in jobs.items() if ended_without_status(job) and job_key(job)}
        for key, outcome in (self.reports(keys) if keys else {}).items():
            statuses[keys[key]] = status_from_wrapper(statuses[keys[key]], outcome)
        return {number: status for number, status in statuses.items() if status.state.final}

    def living(self) -> Collection[LivingJob]:
        """Return this user's waiting and running jobs with a key of Leadline, array elements on their own."""
        answer = self._run(["id", "-un"])
        if answer.timed_out or answer.returncode:
            raise self._unreachable(answer)
        user = answer.stdout.strip()
        ids = [job.scheduler_id for job in read_living(self._listed([]), user)]
        return list(read_living(self._jobs(ids), user))

    def _jobs(self, ids: Collection[str]) -> dict[str, JobAttributes]:
        """Return qstat's attributes of jobs."""
        ids_by_short = {short_id(job_id): job_id for job_id in ids}
        jobs: dict[str, JobAttributes] = {}
        for chunk in chunks(sorted({array_id(job_id) for job_id in ids}), AT_ONCE):
            for number, job in self._listed(chunk, elements=any("[]" in job_id for job_id in chunk)).items():
                array = array_id(number)
                if array == number and "[]" in number:
                    continue
                if short_id(number) in ids_by_short or short_id(array) in ids_by_short:
                    jobs[ids_by_short.get(short_id(number), number)] = job
        return jobs

    def cancel(self, ids: Collection[str], *, waiting: bool = False) -> None:
        """Delete jobs; ended jobs are skipped."""
        if waiting:  # qdel has no such filter
            ids = [job_id for job_id, status in self.query(ids).items() if status.state is JobState.PENDING]
        for chunk in chunks(sorted(ids), AT_ONCE):
            answer = self._run(["qdel", *map(pbs_id, chunk)])
            lines = [line for line in (answer.stderr + answer.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if not _GONE.search(line)]
            if answer.timed_out or (answer.returncode != 0 and errors):
                raise self._unreachable(answer)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return the transport and a job's folder.

        Raises:
            InvalidInput: the job names no folder and would run where qsub happens to be called.
        """
        if spec.workdir is None:
            raise InvalidInput(f"job {spec.name!r} has no working folder: add --workdir, so that its files are found")
        return self.transport, PurePosixPath(spec.workdir)

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Ask qalter for another limit; most sites let users only lower that of a running job."""
        answer = self._run(["qalter", "-l", f"walltime={format_walltime(walltime_s)}", pbs_id(scheduler_id)])
        if answer.timed_out:
            raise self._unreachable(answer)
        if answer.returncode != 0:
            raise RequestRefused(f"PBS does not change the limit of job {scheduler_id} ({_text(answer)})")

    def forecast_start_s(self, submission: Submission) -> float | None:  # noqa: ARG002 - the port's
        """Return None, because PBS predicts no start of an unsubmitted job."""
        return None

    def _listed(self, ids: list[str], *, elements: bool = False) -> dict[str, JobAttributes]:
        """Ask qstat for jobs, or for all; as JSON if the flavour has it and it is valid."""
        history = ["-x"] if self.flavour is PbsFlavour.PRO else []
        words = ["qstat", *history, *(["-t"] if elements else []), "-f"]
        if self.flavour is PbsFlavour.PRO:
            jobs = read_qstat_json(self._qstat([*words, "-F", "json", *ids]))
            if jobs is not None:
                return jobs
        return read_qstat_text(self._qstat([*words, *ids]))

    def _qstat(self, words: list[str]) -> str:
        """Run qstat; an unknown or missing job is not an error."""
        answer = self._run(words)
        errors = [line for line in answer.stderr.splitlines() if line.strip() and not _GONE.search(line)]
        if answer.timed_out or (answer.returncode != 0 and errors):
            raise self._unreachable(answer)
        return answer.stdout

    def _run(self, words: Sequence[str]) -> CompletedProcess:
        """Run a PBS command.

        Raises:
            SchedulerUnreachable: the command or its server is missing, and nothing was executed.
        """
        answer = self.transport.run(words, timeout_s=COMMAND_S)
        if answer.returncode == NO_PROGRAM or (answer.returncode != 0 and _AWAY.search(_text(answer))):
            raise self._unreachable(answer)
        return answer

    def _unreachable(self, answer: CompletedProcess) -> SchedulerUnreachable:
        why = "no answer in time" if answer.timed_out else _text(answer) or f"exit code {answer.returncode}"
        return SchedulerUnreachable(
            f"PBS of {self.name} cannot be reached on {self.transport.where} ({why}): submitted jobs continue"
        )


def _text(answer: CompletedProcess) -> str:
    return " ".join(f"{answer.stderr}\n{answer.stdout}".split())[:400]

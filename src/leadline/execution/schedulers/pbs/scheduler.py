"""PBS as a scheduler, by its own commands: here or on the machine that is logged in to."""

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from pathlib import PurePosixPath

from leadline.core.errors import InvalidInput, SchedulerUnreachable
from leadline.core.jobs import JobSpec
from leadline.core.processes import CompletedProcess
from leadline.execution.schedulers.attempt_files import RUNS_FOLDER, end_name, log_name, read_outcomes
from leadline.execution.schedulers.pbs.parsing import (
    JobAttributes,
    array_id,
    ended_without_status,
    job_key,
    job_status,
    pbs_id,
    read_job_id,
    read_qstat_json,
    read_qstat_text,
    read_tails,
    short_id,
    status_from_wrapper,
)
from leadline.execution.schedulers.pbs.script import PbsFlavour, format_walltime, job_script, qsub_options
from leadline.execution.schedulers.port import (
    RequestRefused,
    SchedulerBusy,
    SchedulerStatus,
    Submission,
    SubmissionUncertain,
)
from leadline.execution.transport.port import NO_PROGRAM, ConnectionLost, Transport, write_release_file
from leadline.execution.wrapper.outcome import JobOutcome

COMMAND_S = 60.0
"""How long a command of PBS's may take."""
AT_ONCE = 200
"""Ids in one command line."""
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


class PbsScheduler:
    """A PBS (implements ``Scheduler``); scripts, outcomes and output lie in ``folder``, which the nodes see.

    ``flavour`` says which words it understands, and ``python`` is an interpreter of its nodes that has Leadline. Times
    are read in this machine's time zone. PBS has no forecast for a job that was not submitted, and no signal before
    the limit: the wrapper sends that. Torque forgets a job minutes after its end.
    """

    def __init__(
        self,
        name: str,
        folder: PurePosixPath,
        transport: Transport,
        *,
        flavour: PbsFlavour = PbsFlavour.PRO,
        python: str = "python3",
    ) -> None:
        self._name = name
        self.folder = folder
        self.transport = transport
        self.flavour = flavour
        self.python = python

    @property
    def name(self) -> str:
        """The system's name."""
        return self._name

    @property
    def abreast(self) -> int:
        """How many submissions it may be handed at once."""
        return 4

    def submit(self, submission: Submission) -> str:
        """Write the script and hand it to qsub.

        Raises:
            InvalidInput: it cannot be written down for PBS.
            Refused: qsub refused it, and says why; ``SchedulerBusy`` where too many jobs are in its queue.
            Unsure: qsub did not answer.
        """
        script = self.folder / "jobs" / f"{submission.key}.sh"
        options = qsub_options(submission, self.flavour, script.with_suffix(".out"))
        self.transport.write(script, job_script(submission, self.folder, python=self.python))
        try:
            answer = self._run(["qsub", *options, str(script)])
        except ConnectionLost as error:
            raise SubmissionUncertain(str(error)) from error
        said = _said(answer)
        if answer.timed_out or (answer.returncode != 0 and _CUT.search(said)):
            raise SubmissionUncertain(
                f"qsub did not answer in time ({said}): look the job up before it is submitted again"
            )
        if answer.returncode != 0:
            refusal = SchedulerBusy if _FULL.search(said) else RequestRefused
            raise refusal(f"PBS refused job {submission.spec.name!r} ({said}): its script is {script}")
        if (found := read_job_id(answer.stdout)) is None:
            raise SubmissionUncertain(f"qsub named no job ({said}): look the job up before it is submitted again")
        return found

    def find(self, keys: Collection[str]) -> Mapping[str, str]:
        """Return key → id by the jobs' names; PBS Professional's history is looked through too."""
        named = {job_key(job): array_id(number) for number, job in self._listed([]).items()}
        return {key: named[key] for key in keys if key in named}

    def query(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Ask qstat; an array's own id stands for its elements.

        A job that ended, and PBS does not say how, is absent.
        """
        return {number: job_status(job) for number, job in self._jobs(ids).items() if not ended_without_status(job)}

    def account(self, ids: Collection[str]) -> Mapping[str, SchedulerStatus]:
        """Return what is known of jobs that ended.

        That is PBS Professional's history, or Torque's last minutes; where PBS does not say how a job ended, it is what
        its wrapper wrote under the submission's key.
        """
        jobs = self._jobs(ids)
        told = {number: job_status(job) for number, job in jobs.items()}
        keys = {job_key(job): number for number, job in jobs.items() if ended_without_status(job) and job_key(job)}
        for key, outcome in (self.reports(keys) if keys else {}).items():
            told[keys[key]] = status_from_wrapper(told[keys[key]], outcome)
        return {number: status for number, status in told.items() if status.state.final}

    def _jobs(self, ids: Collection[str]) -> dict[str, JobAttributes]:
        """Return what qstat says of jobs."""
        wanted = {short_id(one): one for one in ids}
        jobs: dict[str, JobAttributes] = {}
        for asked in _chunks(sorted({array_id(one) for one in ids})):
            for number, job in self._listed(asked, elements=any("[]" in one for one in asked)).items():
                whole = array_id(number)
                if whole == number and "[]" in number:
                    continue
                if short_id(number) in wanted or short_id(whole) in wanted:
                    jobs[wanted.get(short_id(number), number)] = job
        return jobs

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return what these attempts wrote after ``since_s``: outcomes, interim or final, and ends."""
        names = {name: key for key in keys for name in (f"{key}.json", end_name(key))}
        return read_outcomes(self.transport, self.folder, names, since_s=since_s)

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the last of what these attempts wrote to their streams."""
        found: dict[str, str] = {}
        for asked in _chunks(keys):
            paths = {str(self.folder / RUNS_FOLDER / log_name(key)): key for key in asked}
            answer = self._run(["tail", "-v", "-c", str(most_bytes), *paths])
            if answer.timed_out:
                raise self._unreachable(answer)
            found |= {paths[path]: text for path, text in read_tails(answer.stdout, list(paths)).items() if text}
        return found

    def cancel(self, ids: Collection[str]) -> None:
        """Delete jobs; those that ended already are passed over."""
        for asked in _chunks(sorted(ids)):
            answer = self._run(["qdel", *map(pbs_id, asked)])
            lines = [line for line in (answer.stderr + answer.stdout).splitlines() if line.strip()]
            left = [line for line in lines if not _GONE.search(line)]
            if answer.timed_out or (answer.returncode != 0 and left):
                raise self._unreachable(answer)

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the word beside the outcomes of held attempts."""
        for key in keys:
            write_release_file(self.transport, self.folder / RUNS_FOLDER, key)

    def home(self, spec: JobSpec) -> tuple[Transport, PurePosixPath]:
        """Return how a job's files are reached, and its folder.

        Raises:
            InvalidInput: it names none, and would run where qsub happens to be called.
        """
        if spec.workdir is None:
            raise InvalidInput(
                f"job {spec.name!r} names no folder to run in: add --workdir, so that its files are found"
            )
        return self.transport, PurePosixPath(spec.workdir)

    def change_walltime(self, scheduler_id: str, walltime_s: float) -> None:
        """Ask qalter for another limit; most sites let their users only lower that of a running job.

        Raises:
            InvalidInput: that is no limit.
            Refused: PBS refused it, and says why.
        """
        answer = self._run(["qalter", "-l", f"walltime={format_walltime(walltime_s)}", pbs_id(scheduler_id)])
        if answer.timed_out:
            raise self._unreachable(answer)
        if answer.returncode != 0:
            raise RequestRefused(f"PBS does not change the limit of job {scheduler_id} ({_said(answer)})")

    def forecast_start_s(self, submission: Submission) -> float | None:  # noqa: ARG002 - the port's
        """Return ``None``: PBS says nothing of a job that it does not have."""
        return None

    def _listed(self, ids: list[str], *, elements: bool = False) -> dict[str, JobAttributes]:
        """Ask qstat for jobs, or for all; by JSON where the flavour has it and it can be read."""
        history = ["-x"] if self.flavour is PbsFlavour.PRO else []
        words = ["qstat", *history, *(["-t"] if elements else []), "-f"]
        if self.flavour is PbsFlavour.PRO:
            jobs = read_qstat_json(self._asked([*words, "-F", "json", *ids]))
            if jobs is not None:
                return jobs
        return read_qstat_text(self._asked([*words, *ids]))

    def _asked(self, words: list[str]) -> str:
        """Run qstat; that it does not know a job, or has none, is no failure."""
        answer = self._run(words)
        strange = [line for line in answer.stderr.splitlines() if line.strip() and not _GONE.search(line)]
        if answer.timed_out or (answer.returncode != 0 and strange):
            raise self._unreachable(answer)
        return answer.stdout

    def _run(self, words: list[str]) -> CompletedProcess:
        """Run a command of PBS's.

        Raises:
            SchedulerUnreachable: there is no such command, or no server behind it; nothing was carried out.
        """
        answer = self.transport.run(words, timeout_s=COMMAND_S)
        if answer.returncode == NO_PROGRAM or (answer.returncode != 0 and _AWAY.search(_said(answer))):
            raise self._unreachable(answer)
        return answer

    def _unreachable(self, answer: CompletedProcess) -> SchedulerUnreachable:
        why = "no answer in time" if answer.timed_out else _said(answer) or f"exit code {answer.returncode}"
        return SchedulerUnreachable(
            f"PBS of {self._name} cannot be reached on {self.transport.where} ({why}): what was submitted runs on"
        )


def _said(answer: CompletedProcess) -> str:
    return " ".join(f"{answer.stderr}\n{answer.stdout}".split())[:400]


def _chunks(ids: Iterable[str]) -> Iterable[list[str]]:
    left = iter(ids)
    while chunk := list(islice(left, AT_ONCE)):
        yield chunk

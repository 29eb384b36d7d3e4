"""Run Slurm's commands at a place, and tell a refusal from an unreachable controller."""

import re
from collections.abc import Mapping, Sequence

from leadline.core.errors import SchedulerUnreachable
from leadline.core.frozen import Frozen
from leadline.core.processes import CompletedProcess
from leadline.execution.schedulers.port import RequestRefused, SchedulerBusy, SubmissionUncertain
from leadline.execution.schedulers.slurm.parsing import OUTPUT, read_job_id
from leadline.execution.transport.port import NO_PROGRAM, ConnectionLost, Transport

COMMAND_S = 60.0
"""Time limit of one command. With the controller down, squeue fails after 38 s by itself."""
AWAY = re.compile(
    r"slurm controller|socket timed out|zero bytes|connection (refused|timed out|reset)|standby mode|munge"
    r"|authentication|slurm_persist_conn|connect to (the )?database|configuration source|dns srv"
    r"|transport endpoint|name or service not known|no route to host|temporarily unavailable",
    re.IGNORECASE,
)
"""Error texts of an unreachable daemon. Any other error text is Slurm's answer."""
NOTHING_SENT = re.compile(
    r"connect failure|connection refused|standby mode|configuration source|dns srv", re.IGNORECASE
)
"""Error texts of a job that nothing reached the controller about; those of authentication may be about its answer."""
BUSY = re.compile(r"(Max|Grp)SubmitJob|temporarily un(able|available)|too many (jobs|pending)", re.IGNORECASE)
"""Error texts of a site or association that accepts no more jobs for now."""
GONE = re.compile(r"invalid job id|already (completing|completed|finished)|job/step already", re.IGNORECASE)
"""Error texts about a job that is not there, or not any more."""
NO_ACCOUNTING = re.compile(r"accounting storage is disabled|accounting_storage/none", re.IGNORECASE)
ENDED_BY_SIGNAL = 128
"""Larger exit codes come from a shell whose command was killed, or from ssh (255), and are no answer of Slurm."""
_PREFIX = re.compile(r"^\w+: (error|fatal): ")


class SlurmCommands(Frozen):
    """Slurm's commands at one place."""

    transport: Transport
    timeout_s: float = COMMAND_S
    cluster: str = ""
    """The cluster that all commands but sbatch ask; empty for the one of the place."""

    def ask(
        self, argv: Sequence[str], *, stdin: str | None = None, env: Mapping[str, str | None] = OUTPUT
    ) -> CompletedProcess:
        """Run a repeatable command and return its answer, even a refusal.

        Raises:
            SchedulerUnreachable: no answer came.
        """
        at = ["-M", self.cluster] if self.cluster and argv[0] in ("squeue", "sacct", "scontrol", "scancel") else []
        words = [argv[0], *at, *argv[1:]]
        answer = self.transport.run(words, stdin=stdin, env=env, timeout_s=self.timeout_s)
        if _cut_off(answer) or (answer.returncode != 0 and AWAY.search(answer.stderr)):
            raise self._unreachable(argv[0], answer)
        return answer

    def listed(self, argv: Sequence[str]) -> str:
        """Return the output of a listing command.

        Raises:
            SchedulerUnreachable: the command failed, so a missing line proves nothing.
        """
        answer = self.ask(argv)
        if answer.returncode:
            raise self._unreachable(argv[0], answer)
        return answer.stdout

    def submit(self, argv: Sequence[str], script: str) -> str:
        """Run sbatch once and return the job's id.

        Raises:
            RequestRefused: the job was not accepted; ``SchedulerBusy`` if a later try may succeed.
            SubmissionUncertain: the job may have been accepted.
            SchedulerUnreachable: nothing was sent.
        """
        try:
            answer = self.transport.run(argv, stdin=script, timeout_s=self.timeout_s)
        except ConnectionLost as error:
            raise SubmissionUncertain(str(error)) from error
        job_id = read_job_id(answer.stdout)
        if answer.returncode == 0 and job_id is not None:
            return job_id
        refused = answer.returncode > 0 and not _cut_off(answer)
        if answer.returncode == NO_PROGRAM or (refused and NOTHING_SENT.search(answer.stderr)):
            raise self._unreachable(argv[0], answer)
        if refused and BUSY.search(answer.stderr):
            raise SchedulerBusy(f"Slurm at {self.transport.where} accepts no more jobs for now ({error_text(answer)})")
        if not refused or AWAY.search(answer.stderr):
            raise SubmissionUncertain(
                f"Slurm at {self.transport.where} may or may not have accepted a job ({_why(answer)}): "
                "look it up by its key before a second try"
            )
        raise RequestRefused(f"Slurm at {self.transport.where} refused the job ({error_text(answer)})")

    def _unreachable(self, name: str, answer: CompletedProcess) -> SchedulerUnreachable:
        return SchedulerUnreachable(
            f"Slurm at {self.transport.where} cannot be reached ({name}: {_why(answer)}): submitted jobs continue"
        )


def error_text(answer: CompletedProcess) -> str:
    """Return a command's error output on one line, without prefixes."""
    lines = [_PREFIX.sub("", line.strip()) for line in answer.stderr.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines)) or f"exit code {answer.returncode} without a message"


def _cut_off(answer: CompletedProcess) -> bool:
    """True if a timeout or a signal ended the command before it could answer."""
    return answer.timed_out or answer.returncode < 0 or answer.returncode > ENDED_BY_SIGNAL


def _why(answer: CompletedProcess) -> str:
    return "no answer in time" if answer.timed_out else error_text(answer)

"""Answer a tool's call as its command does, in a process of its own."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leadline.app.composition import process_runner
from leadline.app.workloads.find import find_subject
from leadline.core.errors import JobFailed, LeadlineError
from leadline.core.frozen import Frozen
from leadline.interfaces.chat.command_line import command_line

LONGEST_S = 900.0
"""A script is traced for minutes at most; a submission to a silent scheduler ends sooner."""
NOTHING_FITS = 3
"""Exit code of an answer that nothing fits."""
_ERROR = re.compile(r"^leadline(?: [\w-]+)*: ", re.MULTILINE)
"""Beginning of an error: ``leadline devices: unknown device 'nope'``."""


class CommandRunner(Frozen):
    """Runs calls in a folder.

    Attributes:
        folder: folder whose files may be named as workloads, and the working directory.
        scripts: whether a script may be named.
    """

    folder: Path
    scripts: bool = False

    def __call__(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        """Return the command line and what it prints.

        Raises:
            LeadlineError: the workload cannot be used, or the command failed; the message is its own.
        """
        subject = (
            find_subject(arguments["workload"], self.folder, scripts=self.scripts) if "workload" in arguments else ()
        )
        words = command_line(tool, arguments, subject)
        yes = ["--yes"] if tool in ("submit", "cancel") else []
        output, notes = run_leadline([words[0], *yes, *words[1:]], self.folder)
        return f"leadline {shlex.join(words)}", "\n".join(filter(None, [output.rstrip(), notes]))


def run_leadline(words: Sequence[str], folder: Path | None = None) -> tuple[str, str]:
    """Run a command of Leadline in a folder, and return its output and its notes.

    Raises:
        JobFailed: it takes too long.
        LeadlineError: it failed; the message is its own.
    """
    # With -P, no file of the folder stands in for a module of Python.
    argv = [sys.executable, "-P", "-m", "leadline", *words]
    ended = process_runner()(argv, cwd=folder, env={"COLUMNS": "100"}, timeout_s=LONGEST_S)
    # Lines about what is going on end in dots, and are of no use afterwards.
    lines = [line for line in ended.stderr.splitlines() if _ERROR.match(line) or not line.endswith("…")]
    notes = _ERROR.sub("", "\n".join(lines).strip())
    if ended.timed_out:
        raise JobFailed(f"leadline {words[0]} did not answer within {LONGEST_S / 60:.0f} minutes")
    if ended.returncode not in (0, NOTHING_FITS):
        raise LeadlineError(notes or f"leadline {words[0]} failed with exit code {ended.returncode}")
    return ended.stdout, notes

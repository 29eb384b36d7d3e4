"""Answer a tool's call as its command does, in a process of its own."""

import shlex
import sys
from collections.abc import Mapping
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
"""Exit code of an answer that is a no."""


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
        ended = process_runner()(
            [sys.executable, "-m", "leadline", words[0], *yes, *words[1:]], cwd=self.folder,
            env={"COLUMNS": "100"}, timeout_s=LONGEST_S,
        )  # fmt: skip
        # Lines about what is going on end so, and are of no use afterwards.
        lines = [line for line in ended.stderr.splitlines() if not line.endswith("…")]
        said = "\n".join(lines).strip().removeprefix("leadline: ")
        if ended.timed_out:
            raise JobFailed(f"leadline {tool} did not answer within {LONGEST_S / 60:.0f} minutes")
        if ended.returncode not in (0, NOTHING_FITS):
            raise LeadlineError(said or f"leadline {tool} failed with exit code {ended.returncode}")
        return f"leadline {shlex.join(words)}", "\n".join(filter(None, [ended.stdout.rstrip(), said]))

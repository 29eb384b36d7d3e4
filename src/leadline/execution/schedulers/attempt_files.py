"""What attempts leave in their scheduler's folder: outcomes of the wrapper, and ends of what nobody measured."""

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from leadline.core.documents import from_json
from leadline.core.errors import InvalidInput
from leadline.core.jobs import JobState
from leadline.execution.clock import iso_utc
from leadline.execution.transport.port import Transport
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, STARTED_BEFORE, JobOutcome

RUNS_FOLDER = "runs"
"""The folder, in a scheduler's own, of outcomes and outputs."""
_END = ".ended"


def log_name(key: str) -> str:
    """Return the file that has what an attempt, and its scheduler of it, said."""
    return f"{key}.log"


def end_name(key: str) -> str:
    """Return the file in which an attempt that nobody measured leaves how it ended."""
    return f"{key}{_END}"


def run_once_script(command: str, folder: PurePosixPath, *, in_place: bool = False) -> list[str]:
    """Return the lines of bash that run a command of which no wrapper sees that it runs once, and leave how it ended.

    ``LEADLINE_KEY`` is the attempt's key. A second start runs nothing and ends as the first did. A shell that is told
    to end waits for the command, which is told as well; ``in_place`` it gives up its place to the command, which alone
    is sent what was for the shell then, and leaves no end.
    """
    lines = [
        f'leadline={shlex.quote(f"{folder}/{RUNS_FOLDER}")}/"$LEADLINE_KEY"',
        "set -C",
        'if ! { true > "$leadline".started; } 2>/dev/null && [ -e "$leadline".started ]; then',
        f'  if {{ read -r code _ < "$leadline"{_END}; }} 2>/dev/null; then exit "$code"; fi',
        f'  echo "leadline: $LEADLINE_KEY {STARTED_BEFORE}" >&2',
        f"  exit {EXIT_NEVER_BEGAN}",
        "fi",
        "set +C",
    ]
    if in_place:
        return [*lines, f"exec {command}"]
    return [
        *lines,
        "trap : TERM USR1 USR2",
        "printf -v began '%(%s)T' -1",
        "code=0",
        f"{command} || code=$?",
        f"""printf '%s %s %(%s)T\\n' "$code" "$began" -1 > "$leadline"{_END} || true""",
        'exit "$code"',
    ]


def read_outcomes(
    transport: Transport, folder: PurePosixPath, names: Mapping[str, str], *, since_s: float
) -> dict[str, JobOutcome]:
    """Return what lies in the files of these names (name → key) and was written since; what is damaged says nothing.

    Raises:
        SchedulerUnreachable: the folder was not reached.
    """
    found: dict[str, JobOutcome] = {}
    for name, text in transport.read_changed(folder / RUNS_FOLDER, list(names), since_s=since_s).items():
        try:
            found[names[name]] = read_end(text) if name.endswith(_END) else from_json(text, JobOutcome, label=name)
        except InvalidInput:
            continue
    return found


def read_end(text: str) -> JobOutcome:
    """Read exit code, start and end (seconds since the epoch) of a command that nobody measured.

    Raises:
        InvalidInput: it says something else.
    """
    words = text.split()
    if len(words) != 3 or not all(one.isascii() and one.isdigit() for one in words):
        raise InvalidInput(f"{text!r} is not an exit code, a start and an end")
    code, began_s, ended_s = map(int, words)
    state = JobState.FAILED if code else JobState.COMPLETED
    return JobOutcome(state, iso_utc(began_s), "", (), ended_at=iso_utc(ended_s), exit_code=code)

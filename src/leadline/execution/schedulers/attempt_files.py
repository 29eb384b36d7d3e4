"""Files of attempts in their scheduler's folder: outcomes of the wrapper, and ends of unmeasured commands."""

import shlex
import signal
from base64 import b64decode
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from leadline.core.documents import from_json
from leadline.core.errors import InvalidInput, SchedulerUnreachable, excerpt
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.units import parse_epoch_s, parse_whole
from leadline.execution.clock import iso_utc
from leadline.execution.transport.port import FILE_S, Transport, write_release_file
from leadline.execution.wrapper.outcome import EXIT_NEVER_BEGAN, STARTED_BEFORE, JobOutcome

RUNS_FOLDER = "runs"
"""Subfolder of a scheduler's folder with outcomes and outputs."""
_END = ".ended"
_TERM = "TERM"
"""The last word about a command that got SIGTERM before its end."""
TAILS = """\
cd -- "$1" || exit 1
ls >/dev/null
while IFS= read -r name; do
  [ -e "./$name" ] || [ -L "./$name" ] || continue
  printf '%s ' "$name"; [ ! -s "./$name" ] || tail -c "$2" -- "./$name" 2>/dev/null | base64 | tr -d '\\n'; echo
done"""
"""Prints the last ``$2`` bytes of the files named on its input, one line each. Listing the folder first refreshes a
network file system. An absent file proves that a job did not begin, so a folder that is not there is an error."""


OUTPUT_BYTES = 4 << 20
"""Bytes of output that are read at once."""
OUTPUT = """\
[ -e "$1" ] || exit 0
size=$(wc -c < "$1") || exit 1
echo "$size"
if [ -n "$4" ]; then head -c "$size" -- "$1" | tail -n "$4"; else tail -c "+$2" -- "$1" | head -c "$3"; fi | base64"""
"""Prints the size of a file, and the part from byte ``$2`` on, at most ``$3`` bytes, or the last ``$4`` lines."""


def log_name(key: str) -> str:
    """Return the file with the output of an attempt and of its scheduler."""
    return f"{key}.log"


def link_line(folder: PurePosixPath, link: str) -> str:
    """Return a bash line that links the output of the attempt ``LEADLINE_KEY`` to ``link``, a word of the shell.

    A script that is submitted by hand has no such output. The user's file of that name stays.
    """
    log = f'{shlex.quote(f"{folder}/{RUNS_FOLDER}")}/"{log_name("$LEADLINE_KEY")}"'
    return f"[ ! -e {log} ] || {{ [ -e {link} ] && [ ! -L {link} ]; }} || ln -sfn {log} {link} 2>/dev/null || true"


def replace_link(link: Path, target: Path) -> None:
    """Make a link, in place of an earlier one; the file of that name stays, and so does a folder without permission."""
    if not target.exists() or (link.exists() and not link.is_symlink()):
        return
    # The link is a convenience: the job runs without it.
    with suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def result_names(key: str) -> tuple[str, str, str]:
    """Return the outcome files of an attempt: its own, that of the first launched task, and an unmeasured one's end."""
    return f"{key}.json", f"{key}.0.json", f"{key}{_END}"


def run_once_script(command: str, folder: PurePosixPath, *, forwarded: Collection[str] = ()) -> list[str]:
    """Return bash lines that run a command once without the wrapper and store how it ended.

    ``LEADLINE_KEY`` holds the attempt's key. A second start runs nothing and exits like the first. A shell that gets a
    signal waits for the command, to which it passes those in ``forwarded``. Others must reach the command anyway.
    """
    return [
        f'leadline={shlex.quote(f"{folder}/{RUNS_FOLDER}")}/"$LEADLINE_KEY"',
        # With noclobber, only one of two starts can create the marker file.
        "set -C",
        'if ! { true > "$leadline".started; } 2>/dev/null && [ -e "$leadline".started ]; then',
        f'  if {{ read -r code _ < "$leadline"{_END}; }} 2>/dev/null; then exit "$code"; fi',
        f'  echo "leadline: $LEADLINE_KEY {STARTED_BEFORE}" >&2',
        f"  exit {EXIT_NEVER_BEGAN}",
        "fi",
        "set +C",
        # A caught signal waits for the command's end, while an ignored one would be inherited by the command.
        "trap : USR1 USR2",
        "code=0 term=",
        "printf -v began '%(%s)T' -1",
        *(_forwarding(command, forwarded) if forwarded else [f"trap term={_TERM} TERM", f"{command} || code=$?"]),
        f"""printf '%s %s %(%s)T %s\\n' "$code" "$began" -1 "$term" > "$leadline"{_END} || true""",
        'exit "$code"',
    ]


def _forwarding(command: str, signals: Collection[str]) -> list[str]:
    """Return bash lines that run a command in the background, pass signals to it and wait for its end."""
    traps = []
    for name in signals:
        mark = f"term={_TERM}; " if name == _TERM else ""
        traps.append(f"""trap '{mark}kill -{name} "$child" 2>/dev/null || true' {name}""")
    return [
        # Bash ignores SIGINT and SIGQUIT in background commands.
        f"(trap - INT QUIT; exec {command}) & child=$!",
        *traps,
        # A signal ends a wait early.
        'while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done',
        'wait "$child" || code=$?',
    ]


def read_end(text: str) -> JobOutcome:
    """Parse exit code, start and end (seconds since the epoch) of an unmeasured command, and whether it got SIGTERM.

    Raises:
        InvalidInput: the text has another form.
    """
    words = text.split()
    got_term = words[3:] == [_TERM]
    words = words[:3] if len(words) == 3 or got_term else [""] * 3
    code, began_s, ended_s = parse_whole(words[0]), parse_epoch_s(words[1]), parse_epoch_s(words[2])
    if code is None or began_s is None or ended_s is None:
        raise InvalidInput(f"{excerpt(text)!r} is not an exit code, a start and an end")
    state = JobState.FAILED if code else JobState.COMPLETED
    number = int(signal.SIGTERM) if got_term else None
    return JobOutcome(state, iso_utc(began_s), "", (), ended_at=iso_utc(ended_s), exit_code=code, signal=number)


class OutputPart(Frozen):
    """A part of an output file, and the offset of the next one in bytes; None while there is no file."""

    data: bytes
    next_offset: int | None


def read_output(transport: Transport, path: PurePosixPath, offset: int, *, lines: int | None = None) -> OutputPart:
    """Return the output from ``offset`` on, at most ``OUTPUT_BYTES``, or its last ``lines``.

    Raises:
        SchedulerUnreachable: the file was not reached.
    """
    last = "" if lines is None else str(lines)
    words = [OUTPUT, "sh", str(path), str(offset + 1), str(OUTPUT_BYTES), last]
    size, _, text = _run_script(transport, words, noun=str(path)).partition("\n")
    if not size.strip():
        return OutputPart(b"", None)
    data = b64decode(text)
    return OutputPart(data, offset + len(data) if lines is None else int(size))


def _run_script(transport: Transport, words: Sequence[str], *, noun: str, stdin: str | None = None) -> str:
    """Return the output of a shell script, which reads ``noun``, with its arguments."""
    answer = transport.run(["sh", "-c", *words], stdin=stdin, timeout_s=FILE_S)
    if answer.returncode or answer.timed_out:
        why = "no answer in time" if answer.timed_out else " ".join(answer.stderr.split()) or "no reason given"
        raise SchedulerUnreachable(f"{noun} cannot be read at {transport.where} ({why})")
    return answer.stdout


@dataclass(eq=False)
class SiteScheduler:
    """The part of a scheduler of a site that its attempts' files answer.

    Attributes:
        name: the system's name.
        folder: absolute path that the nodes see, for scripts, outcomes and outputs.
        transport: connection to the place.
        python: interpreter of the nodes; jobs are measured if it has Leadline.
    """

    name: str
    folder: PurePosixPath
    transport: Transport
    python: str = field(default="python3", kw_only=True)
    abreast = 4
    submits_once = False

    def reports(self, keys: Collection[str], *, since_s: float = 0.0) -> Mapping[str, JobOutcome]:
        """Return the outcomes, interim or final, and ends written since; damaged files are skipped."""
        names = {name: key for key in keys for name in result_names(key)}
        outcomes = {}
        for name, text in self.transport.read_changed(self.folder / RUNS_FOLDER, names, since_s=since_s).items():
            with suppress(InvalidInput):
                outcome = read_end(text) if name.endswith(_END) else from_json(text, JobOutcome, label=name)
                outcomes[names[name]] = outcome
        return outcomes

    def log_tails(self, keys: Collection[str], *, most_bytes: int = 8192) -> Mapping[str, str]:
        """Return the ends of the output of these attempts, and of the scheduler about them; absent without a file.

        Raises:
            SchedulerUnreachable: the folder cannot be read.
        """
        if not keys:
            return {}
        names = {log_name(key): key for key in keys}
        words = [TAILS, "sh", str(self.folder / RUNS_FOLDER), str(most_bytes)]
        output = _run_script(self.transport, words, noun="logs", stdin="".join(f"{name}\n" for name in names))
        rows = (line.partition(" ") for line in output.splitlines())
        try:
            return {names[name]: b64decode(text).decode(errors="replace") for name, _, text in rows if name in names}
        except ValueError as error:
            where = self.transport.where
            raise SchedulerUnreachable(f"logs cannot be read at {where}: its answer was cut ({error})") from error

    def let_begin(self, keys: Collection[str]) -> None:
        """Write the release files of held attempts."""
        for key in keys:
            write_release_file(self.transport, self.folder / RUNS_FOLDER, key)


def last_log_line(path: Path, *, max_characters: int = 300) -> str:
    """Return the last line of a log that is neither blank nor the wrapper's own; empty if there is none."""
    lines = read_tail(path, 8192).splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("leadline: ")), "")
    return last if len(last) <= max_characters else f"{last[: max_characters - 1]}…"


def read_tail(path: Path, max_bytes: int) -> str:
    """Return the end of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - max_bytes, 0))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""

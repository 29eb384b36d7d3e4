"""``leadline jobs``: list jobs with their status, progress and cost; and the table that other commands share."""

import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from leadline.app.jobs.inline_plane import describe_runner
from leadline.app.jobs.job_status import (
    ArrayStatus,
    JobStatus,
    JobUsage,
    SystemOutage,
    fold_arrays,
    job_statuses,
    system_outages,
)
from leadline.app.jobs.journal import is_journal_lost, keep_journal_open
from leadline.core.documents import to_document
from leadline.core.frozen import Frozen
from leadline.core.jobs import JobState
from leadline.core.units import HOUR_S, format_duration
from leadline.interfaces.cli.command import argument, command, flag, json_option, option
from leadline.interfaces.cli.output import print_json, print_note, print_notes, table_width
from leadline.interfaces.tables import GAP, cell_width

WIDE = 120
"""From this width on, a job's details are on its own line."""
LEAST_KEY = 6
"""Minimum length of a displayed key; any unique prefix names a job."""
MOST_NAME, MOST_WHY = 40, 200
"""Letters that are shown of a name, and of a reason, at most."""
TITLES = ("job", "name", "where", "state", "done", "time", "took")
LEAST = {"name": 8, "where": 12}
"""Columns that are cut on a narrow terminal, with their minimum width, in this order."""
RIGHT = ("done", "time", "took")
BAR = 20
"""Columns of a progress bar."""
STYLES: dict[JobState, dict[str, Any]] = {
    JobState.RUNNING: {"bold": True},
    JobState.COMPLETED: {"fg": "green"},
    JobState.PENDING: {},
}


class JobRow(Frozen):
    """The cells of a job by title, its state, and its details."""

    cells: dict[str, str]
    state: JobState
    more: Sequence[str]


def jobs_table(
    statuses: Sequence[JobStatus | ArrayStatus], width: int, now: datetime | None = None, *, bars: bool = False
) -> list[str]:
    """Return the lines of a table of jobs and arrays for a terminal width, without empty columns.

    With ``bars``, the details of a job begin with a bar of its progress.
    """
    shown = shorten_keys(
        [status.group if isinstance(status, ArrayStatus) else status.group or status.key for status in statuses]
    )
    now = now or datetime.now().astimezone()
    rows = [
        _of_array(status, shown) if isinstance(status, ArrayStatus) else _of_job(status, shown, now)
        for status in statuses
    ]
    titles = [title for title in TITLES if title not in RIGHT or any(row.cells[title] for row in rows)]
    widths = _widths(rows, titles, width)
    lines = [_line({title: title for title in titles}, widths, {"bold": True}, bold=True)]
    for row in rows:
        line = _line(row.cells, widths, STYLES.get(row.state, {"fg": "red"}))
        more = " · ".join([*(_bar(row.cells["done"]) if bars else ()), *row.more])
        wide = bool(more) and width >= WIDE
        lines.append(line + click.style(GAP + more, dim=True) if wide else line)
        if more and not wide:
            lines += wrap_text(" " * (widths["job"] + len(GAP)), more, width, dim=True)
    return lines


def wrap_text(start: str, text: str, width: int, **style: Any) -> list[str]:  # noqa: ANN401
    """Return text wrapped to ``width`` columns, indented by the length of ``start``."""
    lines = textwrap.wrap(text, max(width - len(start), 20), break_on_hyphens=False) or [""]
    starts = [start, *[" " * len(start)] * (len(lines) - 1)]
    return [lead + click.style(line, **style) for lead, line in zip(starts, lines, strict=True)]


def plain_text(text: str, limit: int = MOST_NAME) -> str:
    """Return text on one line without control characters, cut to ``most`` characters."""
    # Names and reasons come from users and schedulers: a control character could rewrite the terminal.
    kept = "".join(" " if unicodedata.category(character).startswith(("C", "Z")) else character for character in text)
    line = " ".join(kept.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return key → its shortest unique prefix."""
    length = LEAST_KEY
    while len({key[:length] for key in keys}) < len(set(keys)):
        length += 1
    return {key: key[:length] for key in keys}


def format_clock_time(at: str, now: datetime) -> str:
    """Return a time in ISO 8601 as local time: ``14:05`` today, else ``24 Nov 14:05``."""
    moment = datetime.fromisoformat(at).astimezone()
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%d %b %H:%M")


def format_spent(spent: JobUsage) -> str:
    """Return the cost: money, units of an allocation, or node-hours if no price is known."""
    if spent.cost is not None and spent.currency == "USD":
        return f"${spent.cost:.2f}" if spent.cost >= 0.01 or not spent.cost else "<$0.01"
    if spent.cost is not None:
        return f"{spent.cost:.3g} {spent.currency}"
    hours = spent.node_s / HOUR_S
    return "" if not hours else f"{hours:.3g} node-h" if hours >= 0.01 else "<0.01 node-h"


def format_progress(status: JobStatus) -> tuple[str, str]:
    """Return the progress of a job, as a share and as a count; empty if unknown."""
    if status.shown is None:
        return "", ""
    of, share = f" of {status.shown.total}" if status.shown.total else "", status.shown.share
    return "" if share is None else f"{100 * share:.0f} %", f"{status.shown.done}{of} {status.shown.unit}"


def _bar(share: str) -> tuple[str, ...]:
    """Return a bar for a share such as ``43 %``; nothing for an unknown one."""
    if not share:
        return ()
    filled = round(float(share.removesuffix(" %")) / 100 * BAR)
    return (f"[{'#' * filled}{'.' * (BAR - filled)}]",)


def _of_job(status: JobStatus, shown: dict[str, str], now: datetime) -> JobRow:
    key = shown[status.group or status.key] + (f"_{status.index}" if status.index is not None else "")
    ran = "" if status.elapsed_s is None else format_duration(status.elapsed_s)
    limit = format_duration(status.walltime_s) if status.walltime_s else ""
    share, count = format_progress(status)
    more = [count] if count else []
    if (end := status.expected_end) is not None:
        more.append(f"ends {format_clock_time(end.earliest, now)} – {format_clock_time(end.latest, now)}")
    if status.attempts > 1:
        more.append(f"attempt {status.attempts} of at most {status.attempts_most}")
    if status.why:
        more.append(plain_text(status.why, MOST_WHY))
    cells = (
        key, plain_text(status.name), status.place, status.state.value, share,
        f"{ran or '–'} / {limit}" if limit else ran, format_spent(status.spent),
    )  # fmt: skip
    return JobRow(dict(zip(TITLES, cells, strict=True)), status.state, more)


def _of_array(array: ArrayStatus, shown: dict[str, str]) -> JobRow:
    first, counts, size = array.elements[0], array.counts, len(array.elements)
    places = dict.fromkeys(element.place for element in array.elements)
    ended = sum(element.closed for element in array.elements)
    worst_first = sorted(counts, key=lambda state: (state is JobState.COMPLETED, -counts[state]))
    main = next(state for state in (JobState.RUNNING, JobState.PENDING, *worst_first) if state in counts)
    cells = (
        shown[array.group], f"{plain_text(first.name)}[{size}]", ", ".join(places), main.value,
        f"{100 * ended // size} %", "", format_spent(array.spent),
    )  # fmt: skip
    more = [", ".join(f"{count} {state.value}" for state, count in counts.items())]
    if (tried := max(element.attempts for element in array.elements)) > 1:
        more.append(f"up to {tried} attempts")
    return JobRow(dict(zip(TITLES, cells, strict=True)), main, more)


def _widths(rows: Sequence[JobRow], titles: Sequence[str], width: int) -> dict[str, int]:
    """Return the width of each column; names and targets are cut until the line fits."""
    widths = {title: max(len(title), *(cell_width(row.cells[title]) for row in rows)) for title in titles}
    for title, least in LEAST.items():
        over = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
        if over > 0 and widths[title] > least:
            widths[title] = max(least, widths[title] - over)
    return widths


def _line(cells: dict[str, str], widths: dict[str, int], state_style: dict[str, Any], **style: Any) -> str:  # noqa: ANN401
    parts = []
    for title, width in widths.items():
        cell = cells[title]
        while cell_width(cell) > width:
            cell = f"{cell.removesuffix('…')[:-1]}…"
        fill = " " * (width - cell_width(cell))
        shown = click.style(cell, **(state_style if title == "state" else style)) if cell else ""
        parts.append(fill + shown if title in RIGHT else shown + fill)
    return GAP.join(parts).rstrip()


JOBS = ("names", "[JOB…]", "Job key or its prefix, job name, scheduler ID, or array.")
names_argument = argument(*JOBS, "all active jobs", nargs=-1)


@command("jobs")
@names_argument
@flag("everything --all", "Include finished jobs.")
@option("most --limit", "N", "Show at most N jobs, the newest.", "all", type=click.IntRange(1))
@flag("--each", "Show every element of an array in its own row.")
@json_option
@keep_journal_open()
def jobs(names: tuple[str, ...], *, everything: bool, most: int | None, each: bool, json: bool) -> None:
    """List your jobs, newest first, with their status, progress, expected end and cost."""
    statuses = job_statuses(names, all_jobs=everything or most is not None, limit=most)
    if statuses or json:
        print_jobs(statuses, each=each, json=json)
    else:
        print_note(no_jobs_message(all_=everything or bool(most)))


def print_jobs(
    statuses: Sequence[JobStatus], *, each: bool = False, json: bool = False, schema: str = "leadline.jobs/1"
) -> None:
    """Print jobs on stdout, as a document or as a table with a note per unreachable system on stderr."""
    if json:
        print_json(to_document({"jobs": statuses}, schema))
        return
    shown = statuses if each else fold_arrays(statuses)
    for line in jobs_table(shown, table_width(), bars=sys.stdout.isatty()):
        click.echo(line)
    print_notes(describe_silent_systems(statuses))


def describe_silent_systems(statuses: Sequence[JobStatus]) -> list[str]:
    """Return a sentence for each system that does not answer; the status of its jobs is older than that."""
    now = datetime.now().astimezone()
    return [
        f"{outage.system}: unreachable since {format_clock_time(outage.since, now)}: {plain_text(outage.why, 200)}"
        f"{_describe_next_try(outage, now)}"
        for outage in system_outages(statuses)
    ]


def _describe_next_try(outage: SystemOutage, now: datetime) -> str:
    """Return when the system is tried again; empty if it is being tried or the time is unknown."""
    if outage.next_at is None:
        return ""
    if describe_runner() is None:
        return ", next try when the plane runs"
    wait_s = (datetime.fromisoformat(outage.next_at) - now).total_seconds()
    return f", next try in {format_duration(round(wait_s))}" if wait_s >= 1 else ""


def no_jobs_message(*, all_: bool) -> str:
    """Return what to do if there is no job to show."""
    if is_journal_lost():
        return (
            "the journal has no jobs, but some may be alive: leadline plane --once looks for them at their schedulers"
        )
    if all_:
        return "no jobs yet; submit one with leadline submit --on SYSTEM:PARTITION -- COMMAND"
    return "no active jobs; leadline jobs --all shows finished ones"

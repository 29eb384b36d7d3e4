"""The table of jobs: one line each with what changes, and below it, where it is narrow, what explains that."""

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from leadline.app.jobs.job_status import ArrayStatus, JobStatus, JobUsage, fold_arrays, job_statuses, silent_systems
from leadline.core.documents import to_document
from leadline.core.jobs import JobState
from leadline.core.units import HOUR_S, format_duration
from leadline.interfaces.cli.command import CommandApp
from leadline.interfaces.cli.output import Json, err, out, print_json

WIDE = 120
"""Columns from which on all that is to be said of a job stands in its one line."""
LEAST_KEY = 6
"""Letters of a key that are shown at least; any beginning that is unique names a job."""
MOST_NAME, MOST_WHY = 40, 200
"""Letters that are shown of a name, and of a reason, at most."""
TITLES = ("job", "name", "where", "state", "done", "time", "took")
LEAST = {"name": 8, "where": 12}
"""What is cut where the terminal is narrow, and how far at most, in this order."""
RIGHT = ("done", "time", "took")
STATE = TITLES.index("state")
GAP = "  "
STYLES = {JobState.RUNNING: "bold", JobState.COMPLETED: "green", JobState.PENDING: ""}


@dataclass(frozen=True, slots=True)
class JobRow:
    """The cells of a job in the order of ``TITLES``, the style of its state, and what else is to be said of it."""

    cells: tuple[str, ...]
    style: str
    more: tuple[str, ...]


def jobs_table(found: Sequence[JobStatus | ArrayStatus], width: int, now: datetime | None = None) -> Text:
    """Return the table of jobs and arrays for so many columns; a column in which nothing is known is left out."""
    shown = shorten_keys([one.group if isinstance(one, ArrayStatus) else one.group or one.key for one in found])
    now = now or datetime.now().astimezone()
    rows = [_of_array(one, shown) if isinstance(one, ArrayStatus) else _of_job(one, shown, now) for one in found]
    known = [at for at, title in enumerate(TITLES) if title not in RIGHT or any(row.cells[at] for row in rows)]
    widths = _widths(rows, known, width)
    lines = [_line(TITLES, widths, "bold", of_state="bold")]
    for row in rows:
        line, more = _line(row.cells, widths, "", of_state=row.style), " · ".join(row.more)
        if more and width >= WIDE:
            line.append(GAP + more, "dim")
        lines.append(line)
        if more and width < WIDE:
            lines += wrap_text(" " * (widths[0] + len(GAP)), more, width, "dim")
    return Text("\n").join(lines)


def wrap_text(start: str, text: str, width: int, style: str) -> list[Text]:
    """Return text in lines of at most ``width`` columns, all indented as far as ``start`` is long."""
    lines = textwrap.wrap(text, max(width - len(start), 20), break_on_hyphens=False) or [""]
    first = Text(start).append(lines[0], style)
    return [first, *(Text(" " * len(start)).append(one, style) for one in lines[1:])]


def plain_text(text: str, most: int = MOST_NAME) -> str:
    """Return text on one line without control characters, cut to ``most`` letters: it may hold anything."""
    kept = "".join(" " if unicodedata.category(one).startswith(("C", "Z")) else one for one in text)
    line = " ".join(kept.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return key → its beginning, as long as tells these keys apart."""
    length = LEAST_KEY
    while len({one[:length] for one in keys}) < len(set(keys)):
        length += 1
    return {one: one[:length] for one in keys}


def format_clock_time(at: str, now: datetime) -> str:
    """Return a moment in ISO 8601 as the clocks here show it: ``14:05`` today, else ``24 Nov 14:05``."""
    moment = datetime.fromisoformat(at).astimezone()
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%d %b %H:%M")


def format_spent(spent: JobUsage) -> str:
    """Return what was spent: money, units of an allocation, or node-hours where no price is known."""
    if spent.cost is not None and spent.currency == "USD":
        return f"${spent.cost:.2f}" if spent.cost >= 0.01 or not spent.cost else "<$0.01"
    if spent.cost is not None:
        return f"{spent.cost:.3g} {spent.currency}"
    hours = spent.node_s / HOUR_S
    return "" if not hours else f"{hours:.3g} node-h" if hours >= 0.01 else "<0.01 node-h"


def format_progress(one: JobStatus) -> tuple[str, str]:
    """Return how far a job is: the share, and what was counted; empty where it is not known."""
    if one.shown is None:
        return "", ""
    of, share = f" of {one.shown.total}" if one.shown.total else "", one.shown.share
    return "" if share is None else f"{100 * share:.0f} %", f"{one.shown.done}{of} {one.shown.unit}"


def _of_job(one: JobStatus, shown: dict[str, str], now: datetime) -> JobRow:
    key = shown[one.group or one.key] + (f"_{one.index}" if one.index is not None else "")
    ran = "" if one.elapsed_s is None else format_duration(one.elapsed_s)
    limit = format_duration(one.walltime_s) if one.walltime_s else ""
    share, count = format_progress(one)
    more = [count] if count else []
    if one.expected_end is not None:
        more.append(
            f"ends {format_clock_time(one.expected_end.earliest, now)} – {format_clock_time(one.expected_end.latest, now)}"
        )
    if one.attempts > 1:
        more.append(f"attempt {one.attempts} of at most {one.attempts_most}")
    if one.why:
        more.append(plain_text(one.why, MOST_WHY))
    cells = (
        key, plain_text(one.name), one.place, one.state.value, share,
        f"{ran or '–'} / {limit}" if limit else ran, format_spent(one.spent),
    )  # fmt: skip
    return JobRow(cells, _style(one.state), tuple(more))


def _of_array(one: ArrayStatus, shown: dict[str, str]) -> JobRow:
    first, counts, size = one.elements[0], one.counts, len(one.elements)
    places = dict.fromkeys(each.place for each in one.elements)
    ended = sum(each.closed for each in one.elements)
    worst_first = sorted(counts, key=lambda state: (state is JobState.COMPLETED, -counts[state]))
    main = next(state for state in (JobState.RUNNING, JobState.PENDING, *worst_first) if state in counts)
    cells = (
        shown[one.group], f"{plain_text(first.name)}[{size}]", ", ".join(places), main.value,
        f"{100 * ended // size} %", "", format_spent(one.spent),
    )  # fmt: skip
    more = [", ".join(f"{count} {state.value}" for state, count in counts.items())]
    if (tried := max(each.attempts for each in one.elements)) > 1:
        more.append(f"up to {tried} attempts")
    return JobRow(cells, _style(main), tuple(more))


def _widths(rows: Sequence[JobRow], known: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each column that is shown: names and places are cut until all fit, as far as may be."""
    widths = {at: max(cell_len(TITLES[at]), *(cell_len(row.cells[at]) for row in rows)) for at in known}
    for title, least in LEAST.items():
        at = TITLES.index(title)
        over = sum(widths.values()) + len(GAP) * (len(widths) - 1) - width
        if over > 0 and widths[at] > least:
            widths[at] = max(least, widths[at] - over)
    return widths


def _line(cells: Sequence[str], widths: dict[int, int], style: str, *, of_state: str) -> Text:
    line = Text()
    for at, width in widths.items():
        cell = cells[at]
        if cell_len(cell) > width:
            cell = set_cell_size(cell, width - 1) + "…"
        fill = " " * (width - cell_len(cell))
        line.append(fill + cell if TITLES[at] in RIGHT else cell + fill, of_state if at == STATE else style)
        line.append(GAP if at != max(widths) else "")
    line.rstrip()
    return line


def _style(state: JobState) -> str:
    return STYLES.get(state, "red")


app = CommandApp()

SCHEMA = "leadline.jobs/1"
EXAMPLES = """\
Examples:
  leadline jobs                     those at work
  leadline jobs train --all         every job that is called train
  leadline jobs 3f2a91 --each       the elements of an array, one by one"""

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB…",
        help="A job's key or its beginning, its name, its id at the scheduler, or an array.",
        show_default="all at work",
    ),
]


@app.command(epilog=EXAMPLES)
def jobs(
    names: Names = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Those that ended, too.")] = False,
    most: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest so many.", show_default="all")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Every element of an array in a row of its own.")] = False,
    json: Json = False,
) -> None:
    """List your jobs, newest first: where, how far, when they are expected to end, and what they took."""
    found = job_statuses(names or (), all_jobs=everything or most is not None, limit=most)
    if json:
        print_json(to_document({"jobs": found}, SCHEMA))
        return
    if not found:
        err().print(no_jobs_message(all_=everything or bool(most)), markup=False, soft_wrap=True)
        return
    print_jobs(found, each=each)


def print_jobs(found: Sequence[JobStatus], *, each: bool = False) -> None:
    """Print jobs on stdout, and on stderr which of their systems do not answer."""
    console = out()
    console.print(jobs_table(found if each else fold_arrays(found), console.width), soft_wrap=True)
    for sentence in describe_silent_systems(found):
        err().print(f"note: {sentence}", markup=False, soft_wrap=True)


def describe_silent_systems(found: Sequence[JobStatus]) -> list[str]:
    """Return a sentence for each system that does not answer: what is shown of its jobs is older than that."""
    now = datetime.now().astimezone()
    return [
        f"{system} has not answered since {format_clock_time(since, now)}, and is asked again ({plain_text(why, 200)})"
        for system, (since, why) in silent_systems(found).items()
    ]


def no_jobs_message(*, all_: bool) -> str:
    """Say what to do where there is no job to be shown."""
    if all_:
        return "no job was handed over yet: leadline submit --on SYSTEM:PARTITION -- COMMAND hands one over"
    return "no job is at work: leadline jobs --all shows those that ended, leadline submit hands one over"

"""The table of jobs: one line each with what changes, and below it, where it is narrow, what explains that."""

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from leadline.app.standing import Folded, Spent, Standing
from leadline.core.jobs import JobState
from leadline.core.units import HOUR_S, format_duration

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
class Row:
    """The cells of a job in the order of ``TITLES``, the style of its state, and what else is to be said of it."""

    cells: tuple[str, ...]
    style: str
    more: tuple[str, ...]


def jobs_table(found: Sequence[Standing | Folded], width: int, now: datetime | None = None) -> Text:
    """Return the table of jobs and arrays for so many columns; a column in which nothing is known is left out."""
    shown = short_keys([one.group if isinstance(one, Folded) else one.group or one.key for one in found])
    now = now or datetime.now().astimezone()
    rows = [_of_array(one, shown) if isinstance(one, Folded) else _of_job(one, shown, now) for one in found]
    known = [at for at, title in enumerate(TITLES) if title not in RIGHT or any(row.cells[at] for row in rows)]
    widths = _widths(rows, known, width)
    lines = [_line(TITLES, widths, "bold", of_state="bold")]
    for row in rows:
        line, more = _line(row.cells, widths, "", of_state=row.style), " · ".join(row.more)
        if more and width >= WIDE:
            line.append(GAP + more, "dim")
        lines.append(line)
        if more and width < WIDE:
            lines += wrapped(" " * (widths[0] + len(GAP)), more, width, "dim")
    return Text("\n").join(lines)


def wrapped(start: str, text: str, width: int, style: str) -> list[Text]:
    """Return text in lines of at most ``width`` columns, all indented as far as ``start`` is long."""
    lines = textwrap.wrap(text, max(width - len(start), 20), break_on_hyphens=False) or [""]
    first = Text(start).append(lines[0], style)
    return [first, *(Text(" " * len(start)).append(one, style) for one in lines[1:])]


def plain(text: str, most: int = MOST_NAME) -> str:
    """Return text on one line without control characters, cut to ``most`` letters: it may hold anything."""
    kept = "".join(" " if unicodedata.category(one).startswith(("C", "Z")) else one for one in text)
    line = " ".join(kept.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return key → its beginning, as long as tells these keys apart."""
    length = LEAST_KEY
    while len({one[:length] for one in keys}) < len(set(keys)):
        length += 1
    return {one: one[:length] for one in keys}


def clock(at: str, now: datetime) -> str:
    """Return a moment in ISO 8601 as the clocks here show it: ``14:05`` today, else ``24 Nov 14:05``."""
    moment = datetime.fromisoformat(at).astimezone()
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%d %b %H:%M")


def format_spent(spent: Spent) -> str:
    """Return what was spent: money, units of an allocation, or node-hours where no price is known."""
    if spent.cost is not None and spent.currency == "USD":
        return f"${spent.cost:.2f}" if spent.cost >= 0.01 or not spent.cost else "<$0.01"
    if spent.cost is not None:
        return f"{spent.cost:.3g} {spent.currency}"
    hours = spent.node_s / HOUR_S
    return "" if not hours else f"{hours:.3g} node-h" if hours >= 0.01 else "<0.01 node-h"


def done_of(one: Standing) -> tuple[str, str]:
    """Return how far a job is: the share, and what was counted; empty where it is not known."""
    if one.shown is None:
        return "", ""
    of, share = f" of {one.shown.total}" if one.shown.total else "", one.shown.share
    return "" if share is None else f"{100 * share:.0f} %", f"{one.shown.done}{of} {one.shown.unit}"


def _of_job(one: Standing, shown: dict[str, str], now: datetime) -> Row:
    key = shown[one.group or one.key] + (f"_{one.index}" if one.index is not None else "")
    ran = "" if one.elapsed_s is None else format_duration(one.elapsed_s)
    limit = format_duration(one.walltime_s) if one.walltime_s else ""
    share, count = done_of(one)
    more = [count] if count else []
    if one.expected_end is not None:
        more.append(f"ends {clock(one.expected_end.earliest, now)} – {clock(one.expected_end.latest, now)}")
    if one.attempts > 1:
        more.append(f"attempt {one.attempts} of at most {one.attempts_most}")
    if one.why:
        more.append(plain(one.why, MOST_WHY))
    cells = (
        key, plain(one.name), one.place, one.state.value, share,
        f"{ran or '–'} / {limit}" if limit else ran, format_spent(one.spent),
    )  # fmt: skip
    return Row(cells, _style(one.state), tuple(more))


def _of_array(one: Folded, shown: dict[str, str]) -> Row:
    first, counts, size = one.elements[0], one.counts, len(one.elements)
    places = dict.fromkeys(each.place for each in one.elements)
    ended = sum(each.closed for each in one.elements)
    worst_first = sorted(counts, key=lambda state: (state is JobState.COMPLETED, -counts[state]))
    main = next(state for state in (JobState.RUNNING, JobState.PENDING, *worst_first) if state in counts)
    cells = (
        shown[one.group], f"{plain(first.name)}[{size}]", ", ".join(places), main.value,
        f"{100 * ended // size} %", "", format_spent(one.spent),
    )  # fmt: skip
    more = [", ".join(f"{count} {state.value}" for state, count in counts.items())]
    if (tried := max(each.attempts for each in one.elements)) > 1:
        more.append(f"up to {tried} attempts")
    return Row(cells, _style(main), tuple(more))


def _widths(rows: Sequence[Row], known: Sequence[int], width: int) -> dict[int, int]:
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

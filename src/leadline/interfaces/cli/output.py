"""What commands write: text and tables on stdout; notes, and the state of long work, on stderr."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import click

from leadline.core.documents import to_document, to_json
from leadline.core.estimate import Estimate
from leadline.core.runs import Value
from leadline.core.units import format_duration
from leadline.interfaces.tables import format_currency, table_lines

Noun = TypeVar("Noun")

PIPE_WIDTH = 160
"""Width of a table that goes to a file or a pipe."""

STATUS_AFTER_S, STATUS_EVERY_S = 2.0, 30.0
"""Silence before the first status line, and between plain ones."""


def print_note(text: str) -> None:
    """Write one line on stderr, in place of a live line."""
    show_live("")
    click.echo(text, err=True)


def print_notes(notes: Iterable[str], kind: str = "note") -> None:
    """Write notes on stderr, one a line."""
    for text in notes:
        print_note(f"{kind}: {text}")


def print_reasons(reasons: Iterable[str]) -> None:
    """Print reasons below a table, each once."""
    for reason in dict.fromkeys(reasons):
        click.secho(f"  · {reason}", dim=True)


def print_basis(estimates: Sequence[Estimate], *, brief: bool = False) -> None:
    """Print what the first estimate rests on, and of the others what is new; if ``brief``, only their assumptions."""
    printed: set[str] = set()
    for number, estimate in enumerate(estimates):
        reasons = [text for text in (*estimate.basis.reasons, *estimate.unknown.values()) if text not in printed]
        if brief and number:
            reasons = [text for text in reasons if text.startswith("assumed")]
        if reasons:
            click.secho(f"Why, for {estimate.target.device} ({estimate.basis.tier.value} tier):", dim=True)
        print_reasons(reasons)
        printed.update(reasons)


def show_live(text: str) -> None:
    """Replace the last line of the terminal on stderr; do nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()


def print_json(document: object) -> None:
    """Print a document on stdout."""
    click.echo(to_json(document))


def print_answer(noun: Noun, schema: str, show: Callable[[Noun], None], *, json: bool) -> None:
    """Print a noun as its JSON document, or for people with ``show``."""
    if json:
        print_json(to_document(noun, schema))
    else:
        show(noun)


def table_width() -> int:
    """Return the columns of the terminal on stdout, or of a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] = ()) -> None:
    """Print a table for the width of the terminal on stdout; ``words`` are the titles of columns of text."""
    bold = partial(click.style, bold=True)
    for line in table_lines(titles, rows, table_width(), words=words, style_title=bold):
        click.echo(line)


@contextmanager
def status(text: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on stderr what takes longer than two seconds; what it yields replaces the text.

    On a terminal the line shows the time and goes when the work is done. Elsewhere, such as in a log, it is written
    once, and every 30 s again if the text has changed. ``quiet`` writes nothing.
    """
    state, done, began = [text], threading.Event(), time.monotonic()
    live = sys.stderr.isatty()

    def show() -> None:
        written, wait_s = "", STATUS_AFTER_S
        while not done.wait(wait_s):
            if live:
                wait_s = 1.0
                show_live(f"{state[0]} … {format_duration(time.monotonic() - began)}")
            elif state[0] != written:
                wait_s, written = STATUS_EVERY_S, state[0]
                print_note(f"{written} …")

    thread = threading.Thread(target=show, daemon=True)
    if not quiet:
        thread.start()
    try:
        yield lambda replaced: state.__setitem__(0, replaced)
    finally:
        done.set()
        if not quiet:
            thread.join()
            show_live("")


def format_cost(estimate: Estimate) -> str:
    """Return an estimate's cost with its currency."""
    return "unknown" if estimate.cost is None else format_currency(estimate.cost.point, estimate.currency)


def format_value(value: Value | None) -> str:
    """Return a parameter's value as a cell."""
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)

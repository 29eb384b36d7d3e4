"""Tables for terminals and notebooks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from io import StringIO

from rich.console import Console
from rich.table import Table

TERMINAL_WIDTH = 160


class TableView(ABC):
    """Mixin of answers: a text table for ``print`` and an HTML table for a notebook.

    A subclass returns a title, column names and rows of cells from ``_table``.
    """

    __slots__ = ()

    @abstractmethod
    def _table(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
        """Return the title, the names of the columns, and the cells of each row."""

    def __str__(self) -> str:
        """Return the title and the table as text."""
        title, columns, rows = self._table()
        table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        stream = StringIO()
        Console(file=stream, width=TERMINAL_WIDTH, highlight=False, markup=False).print(table)
        return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())

    def __repr__(self) -> str:
        """Return the table, so that a terminal shows it."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        title, columns, rows = self._table()
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

"""Tables for terminals and notebooks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape

from leadline.interfaces.tables import table_lines

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
        return "\n".join([title, *table_lines(columns, rows, TERMINAL_WIDTH, words=columns)])

    def __repr__(self) -> str:
        """Return the table, so that a terminal shows it."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        title, columns, rows = self._table()
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

"""The table of errors of live estimates that comes with Leadline, learned from the runs of ``leadline bench plane``."""

from functools import cache

from leadline.core.documents import dump, load
from leadline.estimators.live_table import LiveTable
from leadline.training.shipped_files import FOLDER, content_of
from leadline.training.whole_file import write_whole

FILE = "live.json"


@cache
def shipped_live_table() -> LiveTable:
    """Return the table that intervals of running jobs are made of, unless own runs have made another."""
    return load(content_of(FILE), LiveTable, what=FILE)


def ship(table: LiveTable) -> None:
    """Write the table that is shipped."""
    write_whole(FOLDER / FILE, dump(table, indent=0).encode() + b"\n")

"""The folder of fitted models that come with Leadline."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from leadline.core.documents import from_json, to_json
from leadline.estimators.progress.live_estimates import LiveTable
from leadline.training.atomic_write import write_atomically

SHIPPED_FOLDER = Path(str(files("leadline.training") / "shipped"))


def read_shipped(name: str) -> bytes:
    """Return what a shipped file holds."""
    return (SHIPPED_FOLDER / name).read_bytes()


LIVE_TABLE_FILE = "live.json"


@cache
def shipped_live_table() -> LiveTable:
    """Return the table that intervals of running jobs are made of, unless own runs have made another."""
    return from_json(read_shipped(LIVE_TABLE_FILE), LiveTable, label=LIVE_TABLE_FILE)


def write_shipped_live_table(table: LiveTable) -> None:
    """Write the table that is shipped."""
    write_atomically(SHIPPED_FOLDER / LIVE_TABLE_FILE, to_json(table, indent=0).encode() + b"\n")

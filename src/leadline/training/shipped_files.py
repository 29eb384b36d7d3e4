"""The folder of the fitted models that come with Leadline, and its small table of live estimates.

This module needs no numpy: the plane imports it when it starts.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path

from leadline.core.documents import from_json
from leadline.estimators.progress.live_estimates import LiveTable

SHIPPED_FOLDER = Path(str(files("leadline.training") / "shipped"))
LIVE_TABLE_FILE = "live.json"


def read_shipped(name: str) -> bytes:
    """Return the content of a shipped file."""
    return (SHIPPED_FOLDER / name).read_bytes()


@cache
def shipped_live_table() -> LiveTable:
    """Return the shipped errors of live estimates, from which the intervals of running jobs are made."""
    return from_json(read_shipped(LIVE_TABLE_FILE), LiveTable, label=LIVE_TABLE_FILE)

"""The table of what a trace holds back has a row for each harm, with what the confinement does on this machine."""

import re
from pathlib import Path

from leadline.graphs.torch.worker import confinement
from leadline.graphs.torch.worker.confinement import HARMS
from tests.graphs.torch.worker.test_confinement import FILTERS_ONLY, PYTHON_ONLY, kernel, needs_filters, offer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "trace-a-script.md"
NEWEST_LANDLOCK = 6
"""Version of Landlock from which on it holds back signals, as the table says of newer kernels."""
IN_PYTHON = "write or remove files in Python"
"""Held back by the tracer itself, so it is no harm that the kernel must prevent."""
ROWS = {
    confinement.CHANGES: "write or remove files in child processes or compiled libraries",
    confinement.TRUNCATION: "truncate files there",
    confinement.ATTRIBUTES: "change modes, owners and times of files there",
    confinement.CACHES: "write to caches below `~/.cache`",
    confinement.SHARED_MEMORY: "change shared memory, as files in `/dev/shm`",
    confinement.NETWORK: "reach the network, or open a port",
    confinement.SOCKETS: "connect to Unix sockets of other programs",
    confinement.SIGNALS: "signal other processes, or change their memory",
    confinement.SETTINGS: "change priorities and CPUs of other processes",
    confinement.LASTING: "leave daemons behind",
}


def table():
    """Return the cells of each row by its first cell."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").partition("| The script tries to |")[2].splitlines()[2:]:
        if not line.startswith("|"):
            return rows
        first, *cells = re.findall(r"[^|]+", line)
        rows[first.strip()] = [cell.strip() for cell in cells]
    return rows


def happening(column):
    """Return the harms that happen by one column of the table."""
    return {harm for harm in HARMS if "**happens**" in table()[ROWS[harm]][column]}


def possible(without):
    said = offer(without).partition("did not hold back ")[2].partition("; it held back ")[0]
    return {harm for harm in HARMS if harm in said}


def test_every_harm_has_a_row_and_every_row_a_harm():
    assert list(ROWS) == list(HARMS)
    assert [*table()] == [IN_PYTHON, *ROWS.values()]


def test_with_namespaces_no_harm_happens():
    assert happening(0) == set()


@needs_filters
def test_the_harms_without_namespaces_are_those_that_the_confinement_names():
    newer = set() if kernel()["landlock"] >= NEWEST_LANDLOCK else {confinement.SIGNALS, confinement.TRUNCATION}
    assert possible(FILTERS_ONLY) - newer == happening(1)


def test_the_harms_without_help_of_the_kernel_are_those_that_the_confinement_names():
    assert possible(PYTHON_ONLY) == happening(2)

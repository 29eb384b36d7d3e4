"""The rows of ``bench trust`` about the catalog meet their targets."""

from benchmarks.results import missed_targets
from benchmarks.trust.catalog import rows


def test_every_row_about_the_catalog_meets_its_target():
    measured = rows(quick=True)
    assert missed_targets(measured) == []
    assert all(row.n >= 5 and row.how for row in measured)

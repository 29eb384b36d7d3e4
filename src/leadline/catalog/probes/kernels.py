"""All kernels of the sweep."""

from leadline.catalog.probes import matrix, pointwise, rows
from leadline.catalog.probes.cases import Case


def all_cases(device: str) -> list[Case]:
    """Return the whole sweep for ``cpu`` or ``cuda``."""
    families = (
        matrix.gemms(device),
        matrix.convolutions(device),
        matrix.attentions(device),
        matrix.recurrences(device),
        pointwise.pointwise(device),
        pointwise.movements(device),
        rows.rows(device),
        rows.pools(device),
    )
    return [case for family in families for case in family]

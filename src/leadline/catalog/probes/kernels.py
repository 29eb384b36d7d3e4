"""All kernels of the sweep."""

from itertools import chain
from operator import itemgetter

from leadline.catalog.probes import matrix, pointwise, rows
from leadline.catalog.probes.cases import Case


def all_cases(device: str) -> list[Case]:
    """Return the whole sweep for ``cpu`` or ``cuda``.

    All kernels alternate, so that what a short budget leaves out is missed evenly.
    """
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
    kernels: dict[tuple[str, str], list[Case]] = {}
    for case in chain.from_iterable(families):
        kernels.setdefault((case.kind, case.dtype), []).append(case)
    places = [(n / len(cases), case) for cases in kernels.values() for n, case in enumerate(cases)]
    return [case for _, case in sorted(places, key=itemgetter(0))]

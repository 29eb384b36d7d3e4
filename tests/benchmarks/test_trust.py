"""The parts of ``bench trust``."""

import pytest

from benchmarks.trust.run import run
from leadline.core.errors import InvalidInput, UnknownName


def test_an_unknown_part_is_refused_with_the_names_of_all():
    with pytest.raises(UnknownName, match=r"anwsers.*answers"):
        run(only="anwsers")


def test_published_runs_need_their_folder():
    with pytest.raises(InvalidInput, match="--data"):
        run(only="published")


def test_a_part_alone_measures_only_its_rows():
    names = {row.name for row in run(quick=True, only="catalog").rows}
    assert any("network" in name for name in names)
    assert not any("hostile" in name for name in names)

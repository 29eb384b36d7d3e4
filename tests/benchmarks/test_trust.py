"""The parts of ``bench trust``."""

from importlib import import_module
from inspect import signature

import pytest

from benchmarks.trust.run import PARTS, run
from leadline.core.errors import UnknownName


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_rows_that_can_be_measured_quickly(part):
    assert "quick" in signature(import_module(PARTS[part]).rows).parameters


def test_an_unknown_part_is_refused_with_the_names_of_all():
    with pytest.raises(UnknownName, match="answers, catalog"):
        run(only="anwsers")

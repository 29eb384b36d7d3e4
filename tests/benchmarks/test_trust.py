"""The parts of ``bench trust``."""

import re
from pathlib import Path

import pytest

from benchmarks.command import BENCHMARKS
from benchmarks.trust.run import run
from leadline.core.errors import UnknownName

TRUST = Path(__file__).parents[2] / "benchmarks" / "trust"


def test_all_code_that_the_parts_and_the_readers_use_is_measured():
    sources = "".join(path.read_text(encoding="utf-8") for path in TRUST.glob("*.py"))
    rooms = {f"src/leadline/{room}" for room in re.findall(r"^ *from leadline\.(\w+)", sources, re.MULTILINE)}
    assert rooms <= {*BENCHMARKS["trust"].measures}
    assert len(rooms) > 10


def test_an_unknown_part_is_refused_with_the_names_of_all():
    with pytest.raises(UnknownName, match=r"anwsers.*answers"):
        run(only="anwsers")


def test_a_part_alone_measures_only_its_rows():
    names = {row.name for row in run(quick=True, only="catalog").rows}
    assert any("network" in name for name in names)
    assert not any("hostile" in name for name in names)

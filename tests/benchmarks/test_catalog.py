"""The catalog's bench measures a catalog that is really larger."""

from benchmarks.catalog import RepeatedCatalog, run
from leadline.catalog.read import TomlCatalog


def test_a_repeated_catalog_has_its_own_devices_and_systems():
    base = TomlCatalog()
    large = RepeatedCatalog(base, 3)
    assert 3 * len(base.systems()) == len(large.systems())
    assert 3 * len(base.devices()) == len({device.name for device in large.devices()})
    node = large.system("Pitzer #2").partition("gpu").node
    assert large.device(node.device).name == "V100 PCIe 16GB #2"


def test_the_bench_measures_every_promised_figure():
    result = run(quick=True)
    assert [row.name for row in result.rows] == [
        "devices",
        "systems",
        "whole catalog priced and ranked",
        "ten times the catalog ÷ the catalog",
    ]
    assert all(row.value and row.value > 0 for row in result.rows)

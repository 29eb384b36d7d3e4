"""The catalog's bench measures a catalog that is really larger."""

from leadline.bench.catalog import RepeatedCatalog, run
from leadline.catalog.read import TomlCatalog


def test_a_repeated_catalog_has_its_own_devices_and_systems():
    base = TomlCatalog()
    large = RepeatedCatalog(base, 3)
    assert 3 * len(base.systems()) == len(large.systems())
    assert 3 * len(base.devices()) == len({device.name for device in large.devices()})
    node = large.system("Pitzer #2").partition("gpu").node
    assert "V100 PCIe 16GB #2" == large.device(node.device).name


def test_the_bench_measures_every_promised_figure():
    result = run(quick=True)
    assert ["devices", "systems", "whole catalog priced and ranked", "ten times the catalog ÷ the catalog"] == [
        row.name for row in result.rows
    ]
    assert all(row.value and row.value > 0 for row in result.rows)

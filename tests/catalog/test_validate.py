"""The shipped catalog holds, and entries that cannot be true are refused."""

from dataclasses import replace
from datetime import date

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.catalog.toml_files import read_devices, read_site
from leadline.catalog.validate import validate_catalog
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.systems import Billing, BillingRule
from tests.support.device_rows import device_row

TODAY = date(2026, 11, 21)


@pytest.fixture(scope="module")
def catalog():
    return TomlCatalog()


def problems(devices, systems=()):
    return [finding.problem for finding in validate_catalog(devices, list(systems), TODAY) if finding.error]


def test_the_shipped_catalog_has_no_errors(catalog):
    assert problems(catalog.devices(), catalog.systems()) == []


def test_the_shipped_catalog_is_as_large_as_promised(catalog):
    assert len(catalog.devices()) >= 60
    assert len(catalog.systems()) >= 20
    assert sum(len(system.partitions) for system in catalog.systems()) >= 150


def test_every_device_and_partition_has_a_source(catalog):
    assert all(device.source for device in catalog.devices())
    assert all(one.source for system in catalog.systems() for one in system.partitions)


@pytest.mark.parametrize("name", ["H100 SXM5 80GB", "A100 SXM4 80GB", "L40S", "V100 SXM2 32GB", "B200 SXM"])
def test_a_sparse_peak_given_as_dense_is_refused(catalog, name):
    device = catalog.device(name)
    sparse = replace(
        device, peak_flops_per_s={**device.peak_flops_per_s, "float16": 2 * device.peak_flops_per_s["float16"]}
    )
    assert any("16-bit peak" in problem for problem in problems([sparse]))


def test_a_zero_spec_is_refused(catalog):
    device = replace(catalog.device("T4"), memory_bytes=0)
    assert any("memory_bytes is 0" in problem for problem in problems([device]))


def test_a_zero_price_is_refused_unless_marked_free(catalog):
    system = catalog.system("Pitzer")
    zero = Billing(BillingRule.CORES_AND_GPUS, "USD", core_hour=0.0)
    priced = replace(system, partitions=(replace(system.partitions[0], billing=zero),))
    assert problems(catalog.devices(), [priced]) == ["has a price of zero"]
    free = replace(system, partitions=(replace(system.partitions[0], billing=replace(zero, free=True)),))
    assert problems(catalog.devices(), [free]) == []


def test_an_unknown_device_and_a_duplicate_name_are_refused(catalog):
    system = catalog.system("Pitzer")
    one = system.partitions[0]
    twice = replace(system, partitions=(one, replace(one, node=replace(one.node, device="V1000"))))
    found = problems(catalog.devices(), [twice])
    assert any("V1000" in problem for problem in found)
    assert any("occurs 2 times" in problem for problem in found)


def test_an_old_price_is_a_warning(catalog):
    system = catalog.system("Pitzer")
    stale = [finding for finding in validate_catalog(catalog.devices(), [system], TODAY) if not finding.error]
    assert any("2023" in finding.problem for finding in stale)


def warnings(devices, systems=()):
    return [(row.entry, row.problem) for row in validate_catalog(devices, list(systems), TODAY) if not row.error]


def test_every_device_partition_and_price_of_the_shipped_catalog_has_a_date_and_nothing_is_recalled_of_prices(catalog):
    assert not any("no date" in problem for _, problem in warnings(catalog.devices(), catalog.systems()))
    priced = [(row.name, row.source) for system in catalog.systems() for row in system.partitions
              if row.billing and row.billing.currency == "USD" and row.billing.node_hour]  # fmt: skip
    assert priced
    assert [row for row in priced if "recalled" in row[1]] == []


def test_a_device_or_system_without_a_date_is_a_warning(catalog):
    system, device = catalog.system("Pitzer"), replace(catalog.device("T4"), as_of="")
    undated = replace(system, as_of="", partitions=(replace(system.partitions[0], as_of="", billing=None),))
    assert ("T4", "has no date") in warnings([device])
    assert ("Pitzer", "has no date") in warnings(catalog.devices(), [undated])


def test_a_price_without_a_date_is_a_warning_and_an_unknown_price_is_none(catalog):
    system = catalog.system("AWS us-east-1")
    row = system.partitions[0]
    price = replace(row.billing, as_of="")
    for as_of, billing, expected in (
        ("", price, ["its price has no date"]), ("catalog v8", price, ["its price has no date"]), ("2025", price, []),
        ("2020", replace(price, node_hour=None), []),
    ):  # fmt: skip
        undated = replace(system, as_of=as_of, partitions=(replace(row, as_of=as_of, billing=billing),))
        prices = [problem for _, problem in warnings(catalog.devices(), [undated]) if "price" in problem]
        assert prices == expected


@pytest.mark.parametrize("name", ["pitzer", "OSC-Pitzer", "PITZER"])
def test_a_system_is_found_as_people_type_it(catalog, name):
    assert catalog.system(name).name == "Pitzer"


@pytest.mark.parametrize(
    ("driver", "name"),
    [("Tesla T4", "T4"), ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"), ("Tesla V100-PCIE-32GB", "V100 PCIe 32GB"),
     ("NVIDIA GH200 480GB", "GH200 96GB (Hopper die)"), ("AMD Instinct MI300X", "MI300X"), ("nvidia l40s", "L40S")],
)  # fmt: skip
def test_a_device_is_found_as_its_driver_calls_it(catalog, driver, name):
    assert catalog.device(driver).name == name


def test_an_unknown_name_suggests_close_ones(catalog):
    with pytest.raises(UnknownName, match="Pitzer"):
        catalog.system("Pizter")
    with pytest.raises(UnknownName, match="A100"):
        catalog.device("A1000")


def test_an_invalid_file_is_reported_with_its_line_or_field():
    with pytest.raises(InvalidInput, match="line 2"):
        read_devices("[[devices]]\nname = \n", "mine.toml")
    with pytest.raises(InvalidInput, match=r"mine\.toml.*memory_gb"):
        read_devices(
            '[[devices]]\nname="x"\nvendor="x"\nkind="gpu"\nconfidence="known"\nsource="x"\nmemory_gb=3\n', "mine.toml"
        )


def test_a_missing_table_is_reported_by_name():
    text = """site = "X"\nname = "X"\n[[systems]]\nname = "S"\nkind = "hpc"\nstatus = "production"\nscheduler = "slurm"
confidence = "known"\nsource = "x"\npartitions = [{ name = "p", node = "absent" }]\nnodes = {}\n"""
    with pytest.raises(InvalidInput, match="absent"):
        read_site(text, "x.toml")


def test_a_users_device_overrides_the_shipped_one(tmp_path):
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "mine.toml").write_text(
        '[[devices]]\nname="T4"\nvendor="nvidia"\nkind="gpu"\nconfidence="measured"\nsource="me"\nmemory_gib=15\n'
    )
    catalog = TomlCatalog(tmp_path)
    assert catalog.device("t4").source == "me"
    assert len(TomlCatalog().devices()) == len(catalog.devices())


def test_a_device_round_trips_through_a_row(catalog):
    row = device_row(catalog.device("A100 SXM4 80GB"))
    assert row["name"] == "A100 SXM4 80GB"
    assert row["tflops"]["float16"] == pytest.approx(312)

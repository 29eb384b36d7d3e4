"""What a row of a catalog file says arrives in the noun: every field, in base units."""

from dataclasses import fields

import pytest

from leadline.catalog import toml_files
from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device
from leadline.core.systems import Billing, Limits, NodeType, Partition, Scheduling, SubmitRules, System
from tests.support.device_rows import device_row

WORKED_IN = {
    toml_files.DeviceRow: {"tflops", "base_mhz"},
    toml_files.PartitionRow: {"price", "charge_factor", "constraint", "qos"},
    toml_files.SystemRow: {"nodes", "billing", "rules", "confidence"},
}
"""Fields of rows that become part of another field or of another noun."""


@pytest.mark.parametrize(
    ("row", "nouns"),
    [
        (toml_files.DeviceRow, [Device]),
        (toml_files.BillingRow, [Billing]),
        (toml_files.NodeRow, [NodeType]),
        (toml_files.RulesRow, [SubmitRules]),
        (toml_files.PartitionRow, [Partition, Limits]),
        (toml_files.SchedulingRow, [Scheduling]),
        (toml_files.SystemRow, [System]),
    ],
)
def test_every_row_field_maps_to_a_noun(row, nouns):
    known = {field.name for noun in nouns for field in fields(noun)}
    lost = {name for name in row.__struct_fields__ if toml_files.unit_conversion(name)[0] not in known}
    assert WORKED_IN.get(row, set()) == lost


@pytest.mark.parametrize(
    ("name", "base", "factor"),
    [
        ("memory_gib", "memory_bytes", 2**30),
        ("memory_gib_per_core", "memory_bytes_per_core", 2**30),
        ("link_gb_per_s", "link_bytes_per_s", 10**9),
        ("network_gbit_per_s", "network_bytes_per_s", 125e6),
        ("max_walltime_h", "max_walltime_s", 3600),
        ("boost_mhz", "boost_hz", 1e6),
        ("gpu_hour", "gpu_hour", None),
        ("tdp_w", "tdp_w", None),
    ],
)
def test_practical_units_become_base_units(name, base, factor):
    assert toml_files.unit_conversion(name) == (base, factor)


def test_bytes_are_integers_and_rates_are_not():
    (device,) = toml_files.read_devices(
        '[[devices]]\nname = "X"\nvendor = "Y"\nkind = "gpu"\nconfidence = "found"\nsource = "z"\n'
        "memory_gib = 0.3\nmemory_gb_per_s = 0.5\nbase_mhz = 1.5\ntflops = { float32 = 0.5 }\n",
        "x.toml",
    )
    assert (round(0.3 * 2**30), 5e8, 1.5e6) == (device.memory_bytes, device.memory_bytes_per_s, device.boost_hz)
    assert isinstance(device.memory_bytes, int)
    assert device.peak_flops_per_s == {"float32": 5e11}


def test_a_shipped_device_round_trips():
    for device in TomlCatalog().devices():
        row = device_row(device)
        assert not [name for name, value in row.items() if value in (None, "", [], {})]
        (again,) = [toml_files.msgspec.convert(row, toml_files.DeviceRow).device()]
        assert device.name == again.name
        assert device.memory_bytes == again.memory_bytes
        assert device.peak_flops_per_s == pytest.approx(again.peak_flops_per_s)


def _node(text):
    (system,) = toml_files.read_site(SITE.format(node=text), "lab.toml")
    return system.partitions[0].node


SITE = """
site = "LAB"
name = "Lab"
[[systems]]
name = "Bench"
kind = "hpc"
status = "production"
scheduler = "slurm"
confidence = "found"
source = "a test"
partitions = [{{ name = "gpu", node = "gpu" }}]
[systems.nodes.gpu]
{node}
"""


def test_an_old_file_that_describes_its_network_in_words_gets_the_numbers():
    node = _node('interconnect = "Slingshot 11 (4 NIC)"\ngpus = 4\ndevice = "A100 SXM4 40GB"')
    assert (node.network_technology, node.network_bytes_per_s, node.nics) == ("Slingshot 11", 100e9, 4)


def test_the_numbers_of_a_file_win_over_its_words():
    node = _node('interconnect = "4x IB NDR200"\nnetwork_gbit_per_s = 3200\nnics = 8\nscale_up_gpus = 72')
    assert (node.network_bytes_per_s, node.nics, node.scale_up_gpus) == (400e9, 8, 72)


def test_a_text_that_says_no_rate_leaves_the_network_unknown():
    node = _node('interconnect = "HPE Slingshot"\ngpus = 4')
    assert (node.network_technology, node.network_bytes_per_s, node.nics) == ("Slingshot", None, None)

"""The shipped node types state their networks as numbers, and their labels say the same."""

import pytest

from leadline.catalog.networks import parse_network
from leadline.catalog.read import TomlCatalog
from leadline.core.units import GBIT_BYTES

CATALOG = TomlCatalog()
NODES = {
    f"{system.name}:{partition.node.name}": partition.node
    for system in CATALOG.systems()
    for partition in system.partitions
}
DELTA = "NCSA: 100 or 200 Gb/s Slingshot, and does not say which node has which (Delta_doc architecture.rst)"
LAMBDA = "Lambda publishes no network between on-demand instances"
UNPUBLISHED = {
    "Delta:CPU": DELTA, "Delta:quad A100": DELTA, "Delta:quad A40": DELTA, "Delta:octa A100": DELTA,
    "Delta:octa H200": DELTA, "Delta:octa MI100": DELTA,
    "Lambda Cloud:gpu_8x_v100": LAMBDA, "Lambda Cloud:gpu_1x_a6000": LAMBDA, "Lambda Cloud:gpu_4x_a6000": LAMBDA,
    "Lambda Cloud:gpu_8x_h100_sxm5": LAMBDA, "Lambda Cloud:gpu_1x_b200_sxm6": LAMBDA,
    "Lambda Cloud:gpu_2x_b200_sxm6": LAMBDA, "Lambda Cloud:gpu_8x_b200_sxm6": LAMBDA,
    "Lambda Cloud:gpu_1x_gh200": LAMBDA,
    "AWS us-east-1:p3.2xlarge": "AWS says up to 10 Gb/s, and gives no base rate",
    "Ascend:quad GPU node, CPU only": "the page of batch limits names no network",
    "Ascend:next-gen (Dell R7525)": "the announcement names no network",
}  # fmt: skip
"""Nodes without a published rate, and why."""


@pytest.mark.parametrize(
    ("place", "gbits", "nics"),
    [
        ("Perlmutter:GPU 40GB", 800, 4), ("JUPITER Booster:quad GH200", 800, 4), ("JUWELS Booster:quad A100", 800, 4),
        ("LUMI:LUMI-G", 800, 4), ("Anvil:H (H100)", 800, 2), ("Leonardo Booster:Booster", 400, 4),
        ("AWS us-east-1:p5.48xlarge", 3200, 32), ("AWS us-east-1:p4d.24xlarge", 400, 4),
        ("Azure East US:Standard_ND96isr_H100_v5", 3200, 8), ("GCP us-central1:a3-megagpu-8g", 1600, 8),
        ("Vista:Grace-Grace", 200, 1), ("Horizon:Vera-Vera", 400, None), ("Frontier:quad MI250X", 800, 4),
        ("GCP us-central1:ct5p-hightpu-4t", 200, None), ("Jetson:jetson-agx-orin-64gb", 10, None),
    ],
)  # fmt: skip
def test_a_node_has_the_bandwidth_of_all_its_nics(place, gbits, nics):
    assert (NODES[place].network_bytes_per_s, NODES[place].nics) == (gbits * GBIT_BYTES, nics)


def test_every_node_has_a_network_in_numbers_unless_its_site_publishes_none():
    assert {name for name, node in NODES.items() if node.network_bytes_per_s is None} == set(UNPUBLISHED)


@pytest.mark.parametrize("name", NODES)
def test_the_label_of_a_node_says_what_its_numbers_say(name):
    node = NODES[name]
    label = parse_network(node.interconnect, node.gpus)
    assert label.node_bytes_per_s in (None, node.network_bytes_per_s)
    assert label.nics in (None, node.nics)


def test_the_nvlink_domain_of_a_rack_is_wider_than_a_node():
    racks = {name: node.scale_up_gpus for name, node in NODES.items() if (node.device or "").startswith("GB200")}
    assert racks.pop("Horizon:Grace-Blackwell") == 2
    assert set(racks.values()) == {72}
    assert CATALOG.device("GB300").scale_up_gpus == 72
    assert CATALOG.device("H100 SXM5 80GB").scale_up_gpus == 8

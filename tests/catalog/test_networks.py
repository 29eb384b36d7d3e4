"""The texts that people write about a node's network become numbers, or are unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.networks import Network, parse_network
from leadline.core.units import GBIT_BYTES


@pytest.mark.parametrize(
    ("text", "technology", "gbits", "nics"),
    [
        ("Slingshot 11 (4 NIC)", "Slingshot 11", 800, 4),
        ("Slingshot 11 (1 NIC)", "Slingshot 11", 200, 1),
        ("HPE Slingshot-11", "Slingshot 11", 200, None),
        ("4x Slingshot 11 NICs", "Slingshot 11", 800, 4),
        ("Slingshot 10", "Slingshot 10", 100, None),
        ("Slingshot 4x200 Gb/s", "Slingshot", 800, 4),
        ("Slingshot 200 Gb/s", "Slingshot", 200, None),
        ("4x IB NDR200 DragonFly+", "InfiniBand NDR200", 800, 4),
        ("4x IB HDR200 DragonFly+", "InfiniBand HDR", 800, 4),
        ("2x IB NDR 400", "InfiniBand NDR", 800, 2),
        ("4× IB NDR 200", "InfiniBand NDR200", 800, 4),
        ("IB HDR 2x dual HDR100 DragonFly+", "InfiniBand HDR100", 400, 4),
        ("IB EDR 100 Gb/s", "InfiniBand EDR", 100, None),
        ("IB HDR100 100 Gb/s", "InfiniBand HDR100", 100, None),
        ("IB NDR 200 Gb/s", "InfiniBand NDR", 200, None),
        ("IB NDR 400 Gb/s (gg: 200)", "InfiniBand NDR", 400, None),
        ("InfiniBand NDR, 8 HCAs", "InfiniBand NDR", 3200, 8),
        ("NDR400 x8", "InfiniBand NDR", 3200, 8),
        ("8x NDR400", "InfiniBand NDR", 3200, 8),
        ("InfiniBand 8x400 Gb/s", "InfiniBand", 3200, 8),
        ("8 x 400Gbps RoCEv2", "RoCE", 3200, 8),
        ("8x 400G", None, 3200, 8),
        ("8x ConnectX-7 400 Gb/s", None, 3200, 8),
        ("4 NICs of 200 Gb/s", None, 800, 4),
        ("4 NICs, 200 Gb/s each", None, 800, 4),
        ("EFA 3200 Gb/s", "EFA", 3200, None),
        ("EFAv2 3.2 Tb/s", "EFA", 3200, None),
        ("3200 Gb/s EFA (32 NICs)", "EFA", 3200, 32),
        ("3200 Gb/s (8x 400 Gb/s)", None, 3200, 8),
        ("dual-rail EDR", "InfiniBand EDR", 200, 2),
        ("Dual Rail InfiniBand HDR", "InfiniBand HDR", 400, 2),
        ("IB 4X EDR", "InfiniBand EDR", 100, None),
        ("4x EDR", "InfiniBand EDR", 400, 4),
        ("50 GB/s", None, 400, None),
        ("25 GiB/s InfiniBand", "InfiniBand", 200, None),
        ("100GbE", "Ethernet", 100, None),
        ("2x 25 GigE", "Ethernet", 50, 2),
        ("10 Gigabit Ethernet", "Ethernet", 10, None),
        ("100 Gbit/s Ethernet", "Ethernet", 100, None),
        ("OPA 100 Gb/s", "Omni-Path", 100, None),
        ("Omni-Path", "Omni-Path", 100, None),
        ("IB 100", "InfiniBand", 100, None),
        ("InfiniBand FDR", "InfiniBand FDR", 56, None),
        ("IB XDR 800 Gb/s (vv: 400)", "InfiniBand XDR", 800, None),
        ("4x IB HDR200 + 2x 25 GbE", "InfiniBand HDR", 800, 4),
        ("NVLink 900 GB/s, 8x 400 Gb/s", None, 3200, 8),
    ],
)  # fmt: skip
def test_a_text_is_read_as_it_is_meant(text, technology, gbits, nics):
    assert parse_network(text) == Network(technology, gbits * GBIT_BYTES, nics)


@pytest.mark.parametrize(
    ("text", "technology"),
    [
        (None, None), ("", None), ("fast", None), ("HPE Slingshot", "Slingshot"), ("EFA", "EFA"),
        ("Ethernet", "Ethernet"), ("IB EDR/HDR", None), ("100/200 Gb/s Ethernet", "Ethernet"), ("up to 100 Gb/s", None),
        ("400 Gb/s bidirectional", None), ("NVLink 900 GB/s", None), ("Aries", None), ("512 GB", None),
        ("InfiniBand, 400 Gb/s per GPU", "InfiniBand"), ("HDR or NDR", None),
    ],
)  # fmt: skip
def test_an_open_text_is_unknown(text, technology):
    network = parse_network(text)
    assert (network.technology, network.node_bytes_per_s) == (technology, None)


def test_a_rate_next_to_a_number_of_nics_is_unknown_where_it_may_mean_either():
    assert parse_network("400 Gb/s (4 NICs)") == Network(None, None, 4)


def test_the_name_of_a_technology_gives_no_bandwidth_for_a_node_of_many_gpus():
    assert parse_network("InfiniBand NDR", gpus=8) == Network("InfiniBand NDR")
    assert parse_network("InfiniBand NDR", gpus=1).node_bytes_per_s == 400 * GBIT_BYTES
    assert parse_network("InfiniBand NDR, 8 HCAs", gpus=8).node_bytes_per_s == 3200 * GBIT_BYTES


def test_a_rate_per_gpu_counts_for_every_gpu_of_the_node():
    assert parse_network("InfiniBand, 400 Gb/s per GPU", gpus=4) == Network("InfiniBand", 1600 * GBIT_BYTES, 4)


_WORDS = st.sampled_from(
    ["IB", "NDR", "HDR100", "Slingshot", "11", "4x", "x8", "200", "Gb/s", "GB/s", "(", ")", ":", "NICs", "8", "each",
     "per GPU", "dual", "+", "and", "0x", "99999999999999999999", "3.2", "T", "EFA", "100GbE", "NVLink", ",", "/"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(_WORDS, max_size=12).map(" ".join)), st.integers(0, 16))
def test_any_text_gives_a_positive_bandwidth_or_none(text, gpus):
    network = parse_network(text, gpus)
    assert network.node_bytes_per_s is None or network.node_bytes_per_s > 0
    assert network.nics is None or network.nics > 0

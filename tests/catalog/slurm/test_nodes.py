"""The GPUs of a scheduler are told from their names where these leave one device, and never guessed."""

import pytest

from leadline.catalog.names import match_devices
from leadline.catalog.read import TomlCatalog
from leadline.catalog.slurm.nodes import match_processor, node_gpus
from leadline.catalog.slurm.text import Gres, read_gres
from leadline.core.hardware import DeviceKind

DEVICES = TomlCatalog(None).devices()
FEW = {"A100 SXM4 40GB", "A100 SXM4 80GB", "A100 PCIe 40GB", "A100 PCIe 80GB", "A100 SXM 64GB (Leonardo custom)"}


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ("nvidia_a100-sxm4-80gb", "A100 SXM4 80GB"),
        ("nvidia_h100_80gb_hbm3", "H100 SXM5 80GB"),
        ("nvidia_a100_80gb_pcie", "A100 PCIe 80GB"),
        ("tesla_v100-sxm2-32gb", "V100 SXM2 32GB"),
        ("nvidia_geforce_rtx_3090", "RTX 3090"),
        ("rtx3090", "RTX 3090"),
        ("mi250x", "MI250X GCD"),
        ("2080ti", "RTX 2080 Ti"),
        ("a6000", "RTX A6000"),
        ("l40", "L40"),
        ("l40s", "L40S"),
        ("a10", "A10"),
        ("t4", "T4"),
        ("h100_nvl", "H100 NVL"),
        ("mi300x", "MI300X"),
    ],
)
def test_an_unambiguous_name_identifies_its_device(said, device):
    assert [one.name for one in match_devices(said, DEVICES, (DeviceKind.GPU,))] == [device]


@pytest.mark.parametrize("said", ["a100", "h100", "h100_80gb", "v100", "p100", "h200", "rtx6000", "a100_40gb"])
def test_an_ambiguous_name_lists_its_candidates(said):
    (gpus,) = node_gpus([Gres("gpu", said, 4)], (), DEVICES)
    assert (gpus.device, gpus.count) == (None, 4)
    assert " or " in gpus.why


def test_a100_may_be_any_of_its_boards():
    (gpus,) = node_gpus(read_gres("gpu:a100:4(S:0-1)"), (), DEVICES)
    assert f"a100 may be {' or '.join(sorted(FEW))}" == gpus.why


def test_node_features_can_resolve_an_ambiguous_name():
    (gpus,) = node_gpus([Gres("gpu", "a100", 4)], ["icelake", "a100_80gb_sxm4", "rack1"], DEVICES)
    assert gpus.device == "A100 SXM4 80GB"


def test_features_of_another_device_are_ignored_if_a_type_is_named():
    (gpus,) = node_gpus([Gres("gpu", "a100", 4)], ["l40s"], DEVICES)
    assert gpus.device is None


def test_without_a_type_only_a_feature_that_names_one_device_counts():
    assert [one.device for one in node_gpus([Gres("gpu", None, 4)], ["l40s", "gpu"], DEVICES)] == ["L40S"]
    assert [one.device for one in node_gpus([Gres("gpu", None, 4)], ["a100"], DEVICES)] == [None]
    assert [one.device for one in node_gpus([Gres("gpu", None, 4)], ["l40s", "rtx3090"], DEVICES)] == [None]
    assert [one.device for one in node_gpus([Gres("gpu", None, 4)], ["l4", "p4"], DEVICES)] == [None], "may be racks"


@pytest.mark.parametrize("kind", ["1g.10gb", "a100_3g.20gb", "nvidia_a100_1g.5gb"])
def test_a_mig_slice_is_not_a_device(kind):
    (gpus,) = node_gpus([Gres("gpu", kind, 7)], (), DEVICES)
    assert gpus.device is None
    assert "MIG" in gpus.why


def test_whole_gpus_precede_slices_and_other_resources_are_ignored():
    found = node_gpus(read_gres("gpu:1g.10gb:7,gpu:l40s:2,shard:l40s:16,mps:400"), (), DEVICES)
    assert [(one.kind, one.count) for one in found] == [("l40s", 2), ("1g.10gb", 7)]


def test_the_driver_name_identifies_the_board():
    (gpus,) = node_gpus([Gres("gpu", "a100", 4)], (), DEVICES, driver_name="NVIDIA A100-SXM4-40GB")
    assert gpus.device == "A100 SXM4 40GB"


def test_a_device_missing_from_the_catalog_is_noted():
    (gpus,) = node_gpus([Gres("gpu", "titan_v", 1)], (), DEVICES)
    assert gpus.why == "the catalog has no device called titan_v"


@pytest.mark.parametrize(
    ("model", "device"),
    [
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Intel Xeon Gold 6148"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Intel Xeon E5-2680 v4"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Intel Xeon Platinum 8480+"),
        ("AMD EPYC 7V13 64-Core Processor", None),
        ("", None),
    ],
)
def test_a_processor_is_found_by_the_words_of_its_full_name(model, device):
    found = match_processor(model, DEVICES)
    assert device == (found and found.name)

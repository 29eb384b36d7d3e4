"""Device names as people, drivers, schedulers and clouds write them."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.names import _words, find_device
from leadline.catalog.read import TomlCatalog
from leadline.core.errors import AmbiguousName, UnknownName

CATALOG = TomlCatalog()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100-sxm", "H100 SXM5 80GB"), ("H100 SXM5 80GB", "H100 SXM5 80GB"), ("h100", "H100 SXM5 80GB"),
        ("nvidia-h100-80gb-hbm3", "H100 SXM5 80GB"), ("nvidia-h100-mega-80gb", "H100 SXM5 80GB"),
        ("H100 PCIe", "H100 PCIe 80GB"), ("NVIDIA H100 NVL", "H100 NVL"), ("h100 80gb hbm2e", "H100 PCIe 80GB"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell Server"), ("rtx4090", "RTX 4090"), ("RTX-4090", "RTX 4090"),
        ("geforce rtx 4090", "RTX 4090"), ("RTX 4090 24GB", "RTX 4090"), ("rtx4080", "RTX 4080"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"),
        ("RTX PRO 6000 Max-Q", "RTX PRO 6000 Blackwell Max-Q"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell Workstation"),
        ("MI250", "MI250 GCD"), ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "MI250 GCD"), ("MI250X", "MI250X GCD"),
        ("AMD Instinct MI250X", "MI250X GCD"), ("Instinct MI300X", "MI300X"), ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("A100-40", "A100 SXM4 40GB"), ("a100_40gb", "A100 SXM4 40GB"), ("a100_80gb_pcie", "A100 PCIe 80GB"),
        ("A100-80GB-PCIe", "A100 PCIe 80GB"), ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA-A100-SXM4-40GB", "A100 SXM4 40GB"), ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("gpu:a100:4", "A100 SXM4 80GB"), ("gres/gpu:nvidia_h100_80gb_hbm3:2", "H100 SXM5 80GB"),
        ("nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB", "A100 SXM4 40GB"), ("NVIDIA-L40S-SHARED", "L40S"),
        ("cloud.google.com/gke-accelerator=nvidia-l4", "L4"), ("nvidia-tesla-t4", "T4"), ("8x H200", "H200 SXM"),
        ("nvidia-h200-141gb", "H200 SXM"), ("nvidia-b200", "B200 SXM"), ("NVIDIA GB200", "GB200 (per GPU)"),
        ("nvidia-tesla-a100", "A100 SXM4 40GB"), ("v100s", "V100S PCIe 32GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB (Hopper die)"), ("A6000", "RTX A6000"), ("rtx 6000 ada", "RTX 6000 Ada"),
        ("v5litepod-8", "Cloud TPU v5e"), ("tpu-v6e-slice", "Cloud TPU v6e"), ("v6e-8", "Cloud TPU v6e"),
        ("TPU v5p", "Cloud TPU v5p"), ("Intel Data Center GPU Max 1550", "Intel Max 1550"),
        ("GB300", "GB300 (per GPU)"),
        ("EPYC 7763", "AMD EPYC 7763"), ("Orin AGX 64GB", "Jetson AGX Orin 64GB"),
    ],
)  # fmt: skip
def test_a_name_as_people_write_it_means_the_device(written, name):
    assert CATALOG.device(written).name == name


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("a100 sxm", ("A100 SXM4 40GB", "A100 SXM4 80GB")), ("a100 pcie", ("A100 PCIe 40GB", "A100 PCIe 80GB")),
        ("rtx 6000", ("Quadro RTX 6000", "RTX 6000 Ada")),
        ("RTX PRO 6000 Blackwell", ("Server", "Max-Q", "Workstation")),
        ("V100 SXM2", ("V100 SXM2 16GB", "V100 SXM2 32GB")), ("H100 NVL or so", ()),
    ],
)  # fmt: skip
def test_an_ambiguous_name_lists_what_it_may_mean(written, listed):
    with pytest.raises(AmbiguousName if listed else UnknownName) as refused:
        CATALOG.device(written)
    assert all(name in str(refused.value) for name in listed)


@pytest.mark.parametrize(
    "written",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 mobile", "RTX 3080 Laptop", "Quadro RTX 5000 with Max-Q Design",
        "RTX 2080 Ti Max-Q", "A100 Max-Q", "RTX 4090 notebook",
    ],
)  # fmt: skip
def test_a_laptop_card_never_means_the_desktop_card(written):
    with pytest.raises(UnknownName, match="laptop or Max-Q card"):
        CATALOG.device(written)


@pytest.mark.parametrize(
    "written", ["RTX 3090 Ti", "RTX 4080 Super", "RTX 4090 D", "RTX 3080M", "H900", "A100X", "MI9000"]
)
def test_a_near_miss_is_refused_with_a_suggestion(written):
    with pytest.raises(UnknownName) as refused:
        CATALOG.device(written)
    assert not isinstance(refused.value, AmbiguousName)
    assert "did you mean" in str(refused.value)


@pytest.mark.parametrize("written", ["gpu:1g.5gb:1", "a100_3g.20gb", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "mig-1g.10gb"])
def test_a_mig_slice_never_means_the_whole_gpu(written):
    with pytest.raises(UnknownName, match="slice of a GPU"):
        CATALOG.device(written)


def test_the_users_own_device_wins_over_a_shipped_one_of_the_same_name():
    own = replace(CATALOG.device("T4"), name="my H100", aliases=("H100-SXM",))
    assert find_device("h100-sxm", [own, *CATALOG.devices()]) is own


def test_no_two_shipped_devices_share_a_name():
    keys = Counter(
        key
        for device in CATALOG.devices()
        for key in {frozenset(_words(name)) for name in (device.name, *device.aliases)}
    )
    # Kubernetes of one cloud calls the 40 GB board nvidia-tesla-a100.
    assert [set(key) for key, count in keys.items() if count > 1] == [{"a100"}]


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["a100", ":", "gpu", "80gb", "4", "=", "x", "-", "max-q"])).map("".join)
)
def test_any_text_is_a_device_or_one_clear_error(text):
    with suppress(UnknownName):
        assert CATALOG.device(text) in CATALOG.devices()

"""The driver's context grows with the threads that a GPU holds at once, as published figures have it."""

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import Device, DeviceKind
from leadline.core.units import MIB
from leadline.estimators.driver_context import KERNELS, UNKNOWN, context_bytes

CATALOG = TomlCatalog(None)


@pytest.mark.parametrize(
    ("device", "published_mib"),
    [
        (CATALOG.device("H100 SXM5 80GB"), 534),
        (CATALOG.device("RTX PRO 6000 Blackwell Server"), 555),
        (CATALOG.device("RTX 6000 Ada"), 426),
        (Device("RTX 4060 Ti", "nvidia", DeviceKind.GPU, compute_capability="8.9", compute_units=34), 107),
        (CATALOG.device("RTX 3090"), 256),
        (Device("Titan V", "nvidia", DeviceKind.GPU, compute_capability="7.0", compute_units=80), 319),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else "",
)
def test_a_bare_context_is_as_large_as_was_published(device, published_mib):
    told = context_bytes(device)
    assert pytest.approx(published_mib, rel=0.05) == (told.point - KERNELS.point) / MIB
    assert told.low / MIB - 1 <= published_mib <= told.point / MIB


def test_half_of_an_a100s_bare_context_are_the_stacks_of_its_threads():
    assert context_bytes(CATALOG.device("A100 SXM4 80GB")).point - KERNELS.point == 2 * 216 * MIB


def test_all_kernels_at_once_fit_below_the_high_end():
    bare = 108 * 2048 * 2048
    assert bare + 362 * MIB < context_bytes(CATALOG.device("A100 PCIe 40GB")).high < 1.06 * bare + 362 * MIB


@pytest.mark.parametrize("name", ["MI300X", "Jetson AGX Xavier 32GB", "A10G"])
def test_a_gpu_whose_threads_are_not_known_is_doubted_more(name):
    assert context_bytes(CATALOG.device(name)) == UNKNOWN


def test_what_is_no_gpu_has_no_context():
    assert context_bytes(CATALOG.device("Cloud TPU v4")).high == 0

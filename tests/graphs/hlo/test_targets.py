"""What is told to XLA of a device is what the catalog says of it."""

import re

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.graphs.hlo.targets import target_of

CATALOG = TomlCatalog(None)


def figure(text, name):
    return re.search(rf"\b{name}: (\S+)", text)[1]


def test_a_target_has_the_figures_of_the_catalog_and_of_its_architecture():
    target = target_of(CATALOG.device("A100 SXM4 80GB"))
    text = target["target_config"]
    assert target["platform"] == "cuda"
    assert figure(text, "core_count") == "108"
    assert figure(text, "fpus_per_core") == "64"
    assert figure(text, "clock_rate_ghz") == "1.41"
    assert pytest.approx(int(figure(text, "memory_bandwidth")), rel=0.05) == 2.0e12
    assert figure(text, "shared_memory_per_core") == "167936"
    assert "cuda_compute_capability { major: 8 minor: 0 }" in text


def test_a_clock_that_the_catalog_lacks_is_that_of_the_peak():
    device = CATALOG.device("H100 NVL")
    assert device.boost_hz is None
    clock = float(figure(target_of(device)["target_config"], "clock_rate_ghz"))
    assert device.peak_flops_per_s["float32"] == pytest.approx(clock * 1e9 * 2 * device.compute_units * 128, rel=1e-4)


def test_a_tpu_is_named_by_its_smallest_topology():
    assert target_of(CATALOG.device("Cloud TPU v5e")) == {"platform": "tpu", "topology_name": "v5e:2x2"}


@pytest.mark.parametrize(
    ("name", "said"),
    [("MI300X", "GPUs of NVIDIA and TPUs"), ("B300 SXM", "compute capability 10.3"), ("A10G", "has no compute_units")],
)
def test_a_device_that_cannot_be_compiled_for_says_why(name, said):
    with pytest.raises(InvalidInput, match=said):
        target_of(CATALOG.device(name))

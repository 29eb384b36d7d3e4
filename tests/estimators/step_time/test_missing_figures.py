"""A figure that the catalog lacks is replaced by a stated rule, said, and paid for in the width."""

from dataclasses import replace

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.hardware import DeviceKind
from leadline.estimators.gpu_memory_interval import context_bytes, describe_context
from leadline.estimators.step_time.roofline import clock_hz, compute_units, describe_missing, widen_spread

DEVICES = TomlCatalog().devices()
A100 = TomlCatalog().device("A100 SXM4 80GB")
COMPLETE = [
    device for device in DEVICES
    if device.kind is DeviceKind.GPU and device.compute_units and device.boost_hz and device.lanes_per_unit
    and device.peak_flops_per_s.get("float32") and device.form_factor != "module"
]  # fmt: skip


@pytest.mark.parametrize("device", COMPLETE, ids=lambda device: device.name)
def test_units_inferred_from_the_peak_are_those_of_the_device_and_not_an_a100s(device):
    without = replace(device, compute_units=None)
    assert compute_units(without) == pytest.approx(device.compute_units, rel=0.3)
    assert clock_hz(replace(device, boost_hz=None)) == pytest.approx(device.boost_hz, rel=0.3)


def test_a_gb200_has_half_the_units_that_an_a100s_rate_would_give_it():
    gb200 = TomlCatalog().device("GB200")
    assert gb200.compute_units is None
    assert compute_units(gb200) == pytest.approx(150, rel=0.05)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"l2_bytes": None}, "L2 size (6 MiB assumed)"),
        ({"compute_units": None}, "compute units (108 assumed, from its float32 peak)"),
        ({"compute_units": None, "boost_hz": None}, "clock (1.7 GHz assumed)"),
        ({"tdp_w": None}, "power limit (none assumed)"),
        ({"peak_flops_per_s": {"float16": 3e14}}, "float32 peak (15 operations for each byte of bandwidth assumed)"),
    ],
)
def test_each_replaced_figure_is_said_and_widens_the_interval(figures, says):
    poorer = replace(A100, **figures)
    (sentence,) = describe_missing(poorer)
    assert sentence.startswith("wider interval: the catalog lacks figures of A100 SXM4 80GB: ")
    assert says in sentence
    assert widen_spread(0.1, poorer) > 0.2 > widen_spread(0.1, A100) == 0.1
    assert describe_missing(A100) == ()


@pytest.mark.parametrize("name", ["MI300X", "GB200", "B300"])
def test_an_assumed_driver_context_is_said_and_wide(name):
    device = TomlCatalog().device(name)
    (sentence,) = describe_context(device)
    assert "500 MiB assumed (250 MiB to 800 MiB)" in sentence
    context = context_bytes(device)
    assert context.high / context.low > 3
    assert describe_context(A100) == ()

"""A power limit slows arithmetic more than streaming, in every estimator, and a factory limit changes nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpKind, Stage
from leadline.core.hardware import Calibration, KernelTiming
from leadline.estimators.step_time.fitted_kernels import LearnedKernels
from leadline.estimators.step_time.op_table import index_ops
from leadline.estimators.step_time.op_utilization import OpBasis, roofline_terms_s
from leadline.estimators.step_time.power_limit import (
    LEAST_SHARE,
    STREAMING_DRAW,
    describe_power_limit,
    limit_power,
    limit_spread,
    limited_rates,
    matrix_share,
    measured_under,
    power_spread,
)
from leadline.estimators.step_time.roofline import RooflineKernels, describe_doubts, widen_spread
from leadline.training.shipped_models import shipped_kernels

CATALOG = TomlCatalog()
H100, A100, RTX4090, L4 = (CATALOG.device(name) for name in ("H100 SXM5 80GB", "A100 SXM4 80GB", "RTX 4090", "L4"))
SHARES = st.floats(LEAST_SHARE + 1e-6, 1)


def product(dtype="bfloat16", size=8192):
    width = 4 if dtype == "float32" else 2
    return Op("aten.mm", OpKind.GEMM, Stage.FORWARD, dtype, 2.0 * size**3, 2.0 * width * size**2, 1.0 * width * size**2,
              dims={"b": 1, "m": size, "n": size, "k": size})  # fmt: skip


STREAM = Op("aten.add", OpKind.ELEMENTWISE, Stage.FORWARD, "bfloat16", 1e8, 4e8, 2e8)
ESTIMATORS = {
    "specs": RooflineKernels,
    "kernels": lambda device: LearnedKernels(shipped_kernels(), device),
}


@pytest.mark.parametrize("device", [H100, A100, RTX4090, L4], ids=lambda device: device.name)
def test_the_factory_limit_changes_nothing(device):
    assert limit_power(device, device.tdp_w) is device
    assert power_spread(replace(device, power_limit_w=None)) == power_spread(device)
    assert describe_power_limit(device) == ()


@given(SHARES, SHARES)
def test_a_lower_limit_is_never_faster(one, two):
    low, high = sorted((one, two))
    slow, fast = (RooflineKernels(limit_power(H100, share * H100.tdp_w)) for share in (low, high))
    for op in (product(), product("float32"), STREAM):
        assert RooflineKernels(H100).op_s(op) <= fast.op_s(op) * (1 + 1e-9)
        assert fast.op_s(op) <= slow.op_s(op) * (1 + 1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_half_the_power_slows_products_and_hardly_streams(name):
    limited, full = (ESTIMATORS[name](device) for device in (limit_power(H100, 350), H100))
    ops = [product(), product("float32"), STREAM]
    half, single, stream = (slow / fast for slow, fast in zip(limited.ops_s(ops), full.ops_s(ops), strict=True))
    clock, memory = limited_rates(0.5)
    assert half == pytest.approx(1 / clock, rel=0.1)
    assert single == pytest.approx(1 / clock, rel=0.1)
    assert 1 <= stream < 1.05 / memory < half


def test_streaming_keeps_its_rate_down_to_what_it_draws():
    assert limit_power(H100, STREAMING_DRAW * 700).memory_bytes_per_s == H100.memory_bytes_per_s
    assert limit_power(H100, 0.9 * STREAMING_DRAW * 700).memory_bytes_per_s < H100.memory_bytes_per_s


def test_the_op_model_reads_the_limit_on_a_device_that_it_learned_and_on_others():
    table, _ = index_ops([product(), STREAM])
    limited = limit_power(RTX4090, 225)
    for learned_on in (None, CATALOG.device("RTX 3090")):
        full, slow = (OpBasis.from_table(table, device, learned_on=learned_on) for device in (RTX4090, limited))
        ratio = slow.roofline_s / full.roofline_s
        assert ratio[0] == pytest.approx(2**0.62, rel=0.02)
        assert ratio[1] == pytest.approx(1.12, rel=0.02)
        assert (slow.beyond_s >= full.beyond_s * 1.05).all()


def test_a_board_with_a_low_factory_limit_sustains_less_than_its_peak():
    """MLPerf Inference 4.0 and 4.1: an L4 has 0.29 of an L40S's rate in BERT, and 0.33 of its peak."""
    l40s = CATALOG.device("L40S")
    peaks = L4.peak_flops_per_s["bfloat16"] / l40s.peak_flops_per_s["bfloat16"]
    assert peaks * matrix_share(L4) / matrix_share(l40s) == pytest.approx(0.29, abs=0.02)
    table, _ = index_ops([product()])
    basis = OpBasis.from_table(table, L4, learned_on=RTX4090)
    busy_s, _ = roofline_terms_s(table, L4)
    assert basis.roofline_s[0] == pytest.approx(busy_s[0] / matrix_share(L4), rel=0.02)


@pytest.mark.parametrize("name", ["A100 SXM4 80GB", "H100 SXM5 80GB", "H200 SXM", "B200 SXM", "RTX 3090", "RTX 4090"])
def test_boards_with_the_highest_limit_sustain_their_peak(name):
    assert matrix_share(CATALOG.device(name)) == 1
    assert power_spread(CATALOG.device(name)) == pytest.approx(0, abs=1e-12)


def test_float32_follows_the_factory_limit_where_it_is_lower_than_on_the_learned_device():
    """NeuSight's float32 products: a T4 reaches half of the share of the peak that a V100 reaches."""
    table, _ = index_ops([product("float32")])
    slower = {}
    for name in ("T4", "V100 PCIe 32GB", "H100 SXM5 80GB"):
        device = CATALOG.device(name)
        busy_s, _ = roofline_terms_s(table, device)
        slower[name] = OpBasis.from_table(table, device, learned_on=RTX4090).roofline_s[0] / busy_s[0]
    assert slower["T4"] == pytest.approx(1.38, abs=0.05)
    assert slower["V100 PCIe 32GB"] == pytest.approx(1, abs=0.01)
    assert slower["H100 SXM5 80GB"] == pytest.approx(1, abs=0.01)


def test_a_limit_widens_the_interval_and_is_named():
    limited, lower = limit_power(H100, 500), limit_power(H100, 200)
    assert widen_spread(0.1, H100) == pytest.approx(0.1)
    assert 0.1 < widen_spread(0.1, limited) < widen_spread(0.1, lower)
    assert describe_doubts(limited) == (
        "power limit 500 W of 700 W: arithmetic at 81% of its full rate; wider interval",
    )
    assert "extrapolating" in describe_doubts(lower)[0]


def test_a_card_that_was_measured_under_its_limit_adds_no_error_there():
    limited = limit_power(H100, 350)
    assert limit_spread(limited, 350) == 0
    assert limit_spread(H100, 350) == pytest.approx(limit_spread(limited)) == pytest.approx(0.118, abs=0.001)


def test_impossible_limits_are_refused():
    with pytest.raises(InvalidInput, match=r"800 W is not possible on H100 SXM5 80GB: .* from 140 to 700"):
        limit_power(H100, 800)
    with pytest.raises(InvalidInput, match="3 W is not possible"):
        limit_power(H100, 3)
    with pytest.raises(InvalidInput, match="no factory power limit of Unknown"):
        limit_power(replace(H100, name="Unknown", tdp_w=None), 300)
    with pytest.raises(InvalidInput, match="is no GPU"):
        limit_power(next(device for device in CATALOG.devices() if device.kind == "cpu"), 100)


def test_a_measured_card_has_the_limit_that_its_driver_reported():
    assert measured_under(H100, 500).power_limit_w == 500
    for limit_w in (None, 700, 695, 750):
        assert measured_under(H100, limit_w) is H100
    timing = KernelTiming("gemm", "bfloat16", {}, 1.0)
    calibrated = replace(H100, calibration=Calibration("2026-01-01", "torch", 1, (timing,)))
    assert measured_under(calibrated, 500) is calibrated
    assert not limit_power(calibrated, 500).is_calibrated


@pytest.mark.parametrize(("name", "module"), [("MI250", 128), ("AMD Instinct MI250X", 128)])
def test_an_mi250_is_the_die_that_slurm_counts(name, module):
    """The modules have 128 GB, 3.28 TB/s and 500 W."""
    die = CATALOG.device(name)
    assert die.memory_bytes == module / 2 * 2**30
    assert die.memory_bytes_per_s == pytest.approx(3.277e12 / 2, rel=0.01)
    assert die.tdp_w == 250
    peak = {"MI250": 362.1e12, "AMD Instinct MI250X": 383e12}[name]
    assert die.peak_flops_per_s["float16"] == pytest.approx(peak / 2, rel=0.01)
    slow, fast = (RooflineKernels(device).op_s(product("float16")) for device in (limit_power(die, 125), die))
    assert slow / fast == pytest.approx(2**0.62, rel=0.1)
    assert power_spread(limit_power(die, 125)) > power_spread(limit_power(H100, 350))

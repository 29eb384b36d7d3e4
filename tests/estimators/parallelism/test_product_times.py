"""The seconds of matrix products by measured kernels: bounds, shapes, generations."""

import numpy as np
import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.errors import InvalidInput
from leadline.estimators.parallelism.product_times import product_seconds
from leadline.training.decoder_steps import shipped_step_model

CATALOG = TomlCatalog()
CURVES = shipped_step_model().curves
MEASURED = ("A100 SXM4 80GB", "L40S", "H100 SXM5 80GB", "H200 SXM", "B200 SXM", "GB200 (per GPU)")


def seconds(name, m, n, k, dtype="bfloat16", busy=False):
    rates = CURVES.rates([CATALOG.device(name)], [dtype])
    sides = (np.array([[side]], float) for side in (m, n, k))
    return float(product_seconds(rates, *sides, busy=busy)[0, 0])


@pytest.mark.parametrize("name", MEASURED)
def test_a_large_product_runs_at_half_of_the_peak_or_more_and_below_it(name):
    share = 2 * 8192**3 / seconds(name, 8192, 8192, 8192) / CATALOG.device(name).peak_flops_per_s["bfloat16"]
    assert 0.5 < share < 0.95


@pytest.mark.parametrize(
    ("name", "elapsed_us"),
    # aiconfigurator at 095f58a51, means of the engines that timed 4096 × 4096 × 4096 in bfloat16.
    [("A100 SXM4 80GB", 544), ("L40S", 580), ("H100 SXM5 80GB", 172), ("H200 SXM", 172), ("B200 SXM", 101),
     ("GB200 (per GPU)", 82)],
)  # fmt: skip
def test_a_product_takes_its_measured_time(name, elapsed_us):
    assert 1e6 * seconds(name, 4096, 4096, 4096) == pytest.approx(elapsed_us, rel=0.15)


def test_products_with_a_short_side_have_a_lower_rate():
    square, flat, thin = (seconds("H100 SXM5 80GB", *sides) for sides in
                          ((4096, 4096, 4096), (65536, 4096, 256), (256, 4096, 65536)))  # fmt: skip
    assert square < flat
    assert square < thin


def test_one_more_tile_than_a_wave_holds_takes_longer_than_one_less():
    less, more = (seconds("H100 SXM5 80GB", 128 * tiles, 128, 8192) for tiles in (132, 133))
    assert more / less > 133 / 132


def test_eight_bits_are_faster_than_sixteen_and_slower_than_twice_as_fast():
    half, eight = (seconds("H100 SXM5 80GB", 8192, 8192, 8192, dtype, busy=True) for dtype in ("bfloat16", "float8"))
    assert 1 < half / eight < 2


def test_a_busy_gpu_has_the_clock_of_long_products():
    alone, busy = (seconds("B200 SXM", 1024, 4096, 4096, busy=busy) for busy in (False, True))
    assert busy > 1.05 * alone


@pytest.mark.parametrize(
    ("capability", "curve"),
    [("8.0", "8.0 bfloat16"), ("8.6", "8.0 bfloat16"), ("8.9", "8.9 bfloat16"), ("10.3", "10.0 bfloat16"),
     ("12.0", None), ("7.0", None), ("", None)],
)  # fmt: skip
def test_a_generation_follows_the_measured_one_before_it(capability, curve):
    assert CURVES.curve_of(capability, "bfloat16") == curve


def test_a_gpu_that_nobody_measured_has_the_mean_of_the_curves():
    share = 2 * 8192**3 / seconds("MI300X", 8192, 8192, 8192) / CATALOG.device("MI300X").peak_flops_per_s["bfloat16"]
    assert 0.4 < share < 0.95
    assert seconds("V100 SXM2 16GB", 4096, 4096, 4096, "float16") > 0


def test_many_devices_are_the_devices_one_by_one():
    rates = CURVES.rates([CATALOG.device(name) for name in MEASURED], ["bfloat16"] * len(MEASURED))
    m, n, k = np.full((len(MEASURED), 2), 2048.0), np.array([[1024.0, 4096.0]]), np.full((len(MEASURED), 2), 1024.0)
    together = product_seconds(rates, m, n, k)
    alone = [[seconds(name, 2048, columns, 1024) for columns in (1024, 4096)] for name in MEASURED]
    assert together == pytest.approx(np.array(alone))


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(InvalidInput, match="no float8 peak"):
        seconds("A100 SXM4 80GB", 4096, 4096, 4096, "float8")

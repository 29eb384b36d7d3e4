"""What measured kernels say of others of similar sizes."""

import numpy as np

from leadline.estimators.step_time.fitted_kernels import KernelGP
from leadline.estimators.step_time.kernel_table import PRODUCT, gp_coordinates, tabulate_ops
from leadline.estimators.step_time.swept_kernels import TreePredictions, fit_kernel_gp
from tests.estimators.step_time.conftest import gemm


def test_a_smooth_surface_is_followed_between_its_points():
    points = np.random.default_rng(0).uniform(0, 6, (120, 2))
    surface = fit_kernel_gp(points, 0.4 * np.sin(points[:, 0]))
    asked = np.array([[1.5, 3.0], [4.7, 2.0]])
    assert np.abs(surface.at(asked) - 0.4 * np.sin(asked[:, 0])).max() < 0.08


def test_a_size_that_does_not_matter_gets_the_least_scale():
    points = np.random.default_rng(5).uniform(0, 6, (150, 3))
    surface = fit_kernel_gp(points, 0.3 * np.sin(points[:, 1]))
    assert int(np.argmax(surface.scales)) == 1
    assert surface.scales[[0, 2]].max() < surface.scales[1] / 2


def test_noise_alone_is_not_followed():
    rng = np.random.default_rng(1)
    surface = fit_kernel_gp(rng.uniform(0, 6, (60, 3)), 0.3 * rng.standard_normal(60))
    assert np.sqrt(np.mean(surface.at(rng.uniform(0, 6, (200, 3))) ** 2)) < 0.12


def test_the_error_left_out_is_that_of_points_that_were_never_seen():
    rng = np.random.default_rng(6)
    points, asked = rng.uniform(0, 6, (200, 2)), rng.uniform(0, 6, (400, 2))
    surface = fit_kernel_gp(points, np.sin(points[:, 0]) + 0.1 * rng.standard_normal(200))
    error = np.sqrt(np.mean((surface.at(asked) - np.sin(asked[:, 0]) - 0.1 * rng.standard_normal(400)) ** 2))
    assert 0.8 < surface.error / error < 1.25


def test_distant_kernels_get_no_correction():
    rng = np.random.default_rng(2)
    points = rng.uniform(0, 6, (60, 2))
    surface = fit_kernel_gp(points, 0.4 * np.sin(2 * points[:, 0]) + 0.4 * np.sin(2 * points[:, 1]))
    assert np.abs(surface.at(np.array([[1e4, 1e4]]))).max() < 1e-3


def grown_of(points, told=None):
    """Two trees: one asks for the third coordinate, one for the fourth; their leaves are nodes 1 and 2, 4 and 5."""
    leaves = np.column_stack([1 + (points[:, 2] > 0.5), 4 + (points[:, 3] > 0.5)])
    return TreePredictions(np.zeros(len(points)) if told is None else told, leaves, 6)


def test_kernels_that_end_in_the_same_leaves_are_alike_however_far_their_sizes_are():
    rng = np.random.default_rng(4)
    points, asked = rng.uniform(0, 1, (60, 4)), rng.uniform(0, 1, (40, 4))
    sizes, far = points[:, :2] * 60, asked[:, :2] * 60
    surface = fit_kernel_gp(sizes, 0.3 * (points[:, 2] > 0.5) - 0.15, grown_of(points))
    expected = 0.3 * (asked[:, 2] > 0.5) - 0.15
    assert np.abs(surface.at(far, leaves=grown_of(asked).leaves) - expected).max() < 0.05


def test_trees_are_trusted_as_far_as_they_were_right():
    rng = np.random.default_rng(7)
    points, told = rng.uniform(0, 6, (200, 4)), 0.3 * rng.standard_normal(200)
    trusts = [fit_kernel_gp(points[:, :2], share * told, grown_of(points, told)).trusted for share in (0.0, 1.0)]
    assert trusts[0] < 0.15
    assert trusts[1] > 0.85


def test_a_surface_is_kept_as_arrays():
    points = np.random.default_rng(3).uniform(0, 1, (30, 4))
    grown = grown_of(points, points[:, 0])
    surface = fit_kernel_gp(points[:, :2], points[:, 2], grown)
    again = KernelGP.load(surface.dump())
    asked = (points[:, :2], grown.predicted, grown.leaves)
    assert np.abs(surface.at(*asked) - again.at(*asked)).max() < 1e-6
    assert surface.error == again.error


def test_half_a_tile_left_over_sets_products_apart():
    placed = gp_coordinates(PRODUCT, tabulate_ops([gemm(128, 192, 64), gemm(129, 64, 63)]))
    assert placed[:, 4:].tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]

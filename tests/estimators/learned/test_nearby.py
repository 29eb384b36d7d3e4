"""What measured kernels say of others of similar sizes."""

import numpy as np

from leadline.estimators.learned.nearby import Nearby, nearby_of


def test_a_smooth_surface_is_followed_between_its_points():
    points = np.random.default_rng(0).uniform(0, 6, (120, 2))
    surface = nearby_of(points, 0.4 * np.sin(points[:, 0]))
    asked = np.array([[1.5, 3.0], [4.7, 2.0]])
    assert np.abs(surface.at(asked) - 0.4 * np.sin(asked[:, 0])).max() < 0.08


def test_noise_alone_is_not_followed():
    rng = np.random.default_rng(1)
    surface = nearby_of(rng.uniform(0, 6, (60, 3)), 0.3 * rng.standard_normal(60))
    assert np.sqrt(np.mean(surface.at(rng.uniform(0, 6, (200, 3))) ** 2)) < 0.12


def test_nothing_is_said_of_kernels_far_away():
    surface = nearby_of(np.random.default_rng(2).uniform(0, 1, (40, 2)), np.full(40, 0.5))
    assert np.abs(surface.at(np.array([[90.0, 90.0]]))).max() < 1e-6


def leaves_of(points):
    """Two trees: one asks for the third coordinate, one for the fourth; their leaves are nodes 1 and 2, 4 and 5."""
    return np.column_stack([1 + (points[:, 2] > 0.5), 4 + (points[:, 3] > 0.5)])


def test_kernels_that_end_in_the_same_leaves_are_alike_however_far_their_sizes_are():
    rng = np.random.default_rng(4)
    points, asked = rng.uniform(0, 1, (60, 4)), rng.uniform(0, 1, (40, 4))
    sizes, far = points[:, :2] * 60, asked[:, :2] * 60
    surface = nearby_of(sizes, 0.3 * (points[:, 2] > 0.5) - 0.15, leaves_of(points), 6)
    expected = 0.3 * (asked[:, 2] > 0.5) - 0.15
    assert np.abs(surface.at(far, leaves_of(asked)) - expected).max() < 0.05


def test_a_surface_is_kept_as_arrays():
    points = np.random.default_rng(3).uniform(0, 1, (30, 4))
    leaves = leaves_of(points)
    surface = nearby_of(points[:, :2], points[:, 2], leaves, 6)
    again = Nearby.load(surface.dump())
    assert np.abs(surface.at(points[:, :2], leaves) - again.at(points[:, :2], leaves)).max() < 1e-6
    assert surface.error == again.error

"""Experimental designs: grid, random, and space-filling with preference for cheap runs."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import islice, product

import numpy as np
from scipy.stats import qmc

from leadline.campaigns.configurations import Axis, axes, configurations, distinct_configurations
from leadline.campaigns.run_time_model import Array, CampaignEncoding
from leadline.core.campaigns import Campaign, Configuration, Design
from leadline.core.runs import Scale

POOL = 1024
"""Candidate points of a space-filling design."""
THRIFT = 0.25
"""Exponent of forecast cost in the denominator of a point's distance."""
LARGEST_PERIOD = 5
"""Period at which a scaled-down configuration is one of the largest."""


def choose_configurations(campaign: Campaign, kind: Design, scale: Scale, count: int) -> list[Configuration]:
    """Return up to ``count`` distinct configurations of a scale, determined by campaign and seed.

    An adaptive design starts as a space-filling one.
    """
    choose: Callable[[Campaign, Scale, int], list[Configuration]] = {
        Design.GRID: grid_design,
        Design.RANDOM: random_design,
    }.get(kind, space_filling_design)
    return choose(campaign, scale, count)


def grid_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return a full factorial design over all categories and resources and evenly spaced numeric levels.

    Levels are added in turn, on scale-carrying axes first, up to ``count`` points. If categories and resources alone
    have more, the design is a random subset. The order is shuffled, so that every prefix is a sample.
    """
    scale_axes = axes(campaign, scale)
    counts = [len(axis.levels) if axis.levels and not _grows(axis) else 1 for axis in scale_axes]
    growing = sorted(
        (i for i, axis in enumerate(scale_axes) if _grows(axis)), key=lambda i: not scale_axes[i].carries_scale
    )
    while growing:
        for index in list(growing):
            grown = [*counts[:index], counts[index] + 1, *counts[index + 1 :]]
            if math.prod(grown) > count or grown[index] > scale_axes[index].count:
                growing.remove(index)
            else:
                counts = grown
    points = list(distinct_configurations(configurations(campaign, scale, product(*map(_shares, counts)))))
    random.Random(f"{campaign.seed} grid {scale}").shuffle(points)  # noqa: S311 - a design, no secret
    return points[:count]


def _grows(axis: Axis) -> bool:
    return axis.numeric and axis.name not in ("cores", "memory") and axis.count > 1


def _shares(levels: int) -> list[float]:
    """Return positions of evenly spaced levels from 0 to 1; the middle for a single one."""
    return [0.5] if levels == 1 else [index / (levels - 1) for index in range(levels)]


def random_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return independent configurations, uniform over each axis."""
    draw = random.Random(f"{campaign.seed} random {scale}")  # noqa: S311 - a design, no secret
    width = len(axes(campaign, scale))
    drawn = ([draw.random() for _ in range(width)] for _ in range(20 * count))
    return list(islice(distinct_configurations(configurations(campaign, scale, drawn)), count))


def space_filling_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return configurations far from each other, with cheaper ones preferred and some at the largest scale.

    Points of a Sobol sequence are added greedily by maximin distance over forecast cost: every prefix is a design.
    """
    candidates = sobol_pool(campaign, scale, POOL)
    encoding = CampaignEncoding(campaign)
    basis = encoding.basis(candidates)
    points = _coordinates(encoding, basis)
    cost = np.exp(basis @ encoding.mean)
    scales = _scale_share(campaign, scale, candidates)
    top = scales >= np.quantile(scales, 0.9)
    chosen = [int(np.argmin(cost))]
    nearest = np.linalg.norm(points - points[chosen[0]], axis=1)
    while len(chosen) < min(count, len(candidates)):
        largest = len(chosen) % LARGEST_PERIOD == LARGEST_PERIOD - 1
        merit = nearest * top if largest and (nearest * top).max() > 0 else nearest / cost**THRIFT
        if merit.max() <= 0:
            break
        chosen.append(int(np.argmax(merit)))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return [candidates[index] for index in chosen[:count]]


def sobol_pool(campaign: Campaign, scale: Scale, size: int, salt: int = 0) -> list[Configuration]:
    """Return distinct configurations of a scrambled Sobol sequence; ``size`` is a power of two."""
    width = len(axes(campaign, scale))
    sequence = qmc.Sobol(width, scramble=True, seed=np.random.default_rng([campaign.seed, salt, len(scale.name)]))
    return list(distinct_configurations(configurations(campaign, scale, sequence.random(size))))


def _coordinates(encoding: CampaignEncoding, basis: Array) -> Array:
    """Return points in which each numeric axis spans 1 and two categories are 1 apart."""
    numeric, categories = encoding.coordinates(basis)
    span = np.ptp(numeric, axis=0) if len(numeric) else np.ones(numeric.shape[1])
    return np.hstack([numeric / np.where(span > 0, span, 1.0), categories / math.sqrt(2)])


def _scale_share(campaign: Campaign, scale: Scale, candidates: Sequence[Configuration]) -> Array:
    """Return the mean position of the scale-carrying parameters in their ranges, from 0 to 1."""
    shares = np.zeros(len(candidates))
    for axis in axes(campaign, scale):
        if axis.carries_scale and axis.low < axis.high:
            values = np.array([float(configuration.parameters[axis.name]) for configuration in candidates])
            shares += (values - axis.low) / (axis.high - axis.low)
    return shares

"""Choose configurations ahead of any run: on a grid, at random, or spread through the space where runs are cheap."""

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
"""Points from which a space-filling design is chosen."""
THRIFT = 0.25
"""Exponent of a configuration's forecast cost, by which its distance to those chosen is divided."""
AT_THE_TOP = 5
"""Every so many-th scaled-down configuration is one of the largest."""


def choose_configurations(campaign: Campaign, kind: Design, scale: Scale, count: int) -> list[Configuration]:
    """Return up to ``count`` distinct configurations of a scale, the same for the same campaign and seed.

    Fewer where the space has no more. The start of an adaptive design is a space-filling one.
    """
    choose: Callable[[Campaign, Scale, int], list[Configuration]] = {
        Design.GRID: grid_design,
        Design.RANDOM: random_design,
    }.get(kind, space_filling_design)
    return choose(campaign, scale, count)


def grid_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return a full factorial design: every category and resource, and evenly spaced levels of what is numeric.

    The levels grow in turn, those that carry scale first, while there are at most ``count`` points. Where already the
    categories and resources have more, some of those points are taken at random. Their order is mixed, so that every
    beginning of the list is a sample of it.
    """
    found = axes(campaign, scale)
    counts = [len(axis.levels) if axis.levels and not _grows(axis) else 1 for axis in found]
    growing = sorted((i for i, axis in enumerate(found) if _grows(axis)), key=lambda i: not found[i].carries_scale)
    while growing:
        for index in list(growing):
            more = [*counts[:index], counts[index] + 1, *counts[index + 1 :]]
            if math.prod(more) > count or more[index] > found[index].count:
                growing.remove(index)
            else:
                counts = more
    points = list(distinct_configurations(configurations(campaign, scale, product(*map(_shares, counts)))))
    random.Random(f"{campaign.seed} grid {scale}").shuffle(points)  # noqa: S311 - a design, no secret
    return points[:count]


def _grows(axis: Axis) -> bool:
    return axis.numeric and axis.name not in ("cores", "memory") and axis.count > 1


def _shares(levels: int) -> list[float]:
    """Return where that many levels lie: both ends and evenly between; the middle for one."""
    return [0.5] if levels == 1 else [index / (levels - 1) for index in range(levels)]


def random_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return configurations drawn independently, each value uniform over its axis."""
    draw = random.Random(f"{campaign.seed} random {scale}")  # noqa: S311 - a design, no secret
    width = len(axes(campaign, scale))
    drawn = ([draw.random() for _ in range(width)] for _ in range(20 * count))
    return list(islice(distinct_configurations(configurations(campaign, scale, drawn)), count))


def space_filling_design(campaign: Campaign, scale: Scale, count: int) -> list[Configuration]:
    """Return configurations far from each other, the cheaper of two that are as far, some at the largest scale.

    Chosen one after the other from a Sobol sequence by maximin distance over forecast cost, so that every beginning of
    the list is itself such a design.
    """
    found = sobol_pool(campaign, scale, POOL)
    encoding = CampaignEncoding(campaign)
    basis = encoding.basis(found)
    where = _coordinates(encoding, basis)
    cost = np.exp(basis @ encoding.mean)
    scales = _scale_share(campaign, scale, found)
    top = scales >= np.quantile(scales, 0.9)
    chosen = [int(np.argmin(cost))]
    nearest = np.linalg.norm(where - where[chosen[0]], axis=1)
    while len(chosen) < min(count, len(found)):
        largest = len(chosen) % AT_THE_TOP == AT_THE_TOP - 1
        merit = nearest * top if largest and (nearest * top).max() > 0 else nearest / cost**THRIFT
        if merit.max() <= 0:
            break
        chosen.append(int(np.argmax(merit)))
        nearest = np.minimum(nearest, np.linalg.norm(where - where[chosen[-1]], axis=1))
    return [found[index] for index in chosen[:count]]


def sobol_pool(campaign: Campaign, scale: Scale, size: int, salt: int = 0) -> list[Configuration]:
    """Return distinct configurations of a scrambled Sobol sequence; ``size`` is a power of two."""
    width = len(axes(campaign, scale))
    sequence = qmc.Sobol(width, scramble=True, seed=np.random.default_rng([campaign.seed, salt, len(scale.name)]))
    return list(distinct_configurations(configurations(campaign, scale, sequence.random(size))))


def _coordinates(encoding: CampaignEncoding, basis: Array) -> Array:
    """Return points such that each numeric axis spans 1, and two categories are 1 apart."""
    numeric, categories = encoding.coordinates(basis)
    span = np.ptp(numeric, axis=0) if len(numeric) else np.ones(numeric.shape[1])
    return np.hstack([numeric / np.where(span > 0, span, 1.0), categories / math.sqrt(2)])


def _scale_share(campaign: Campaign, scale: Scale, found: Sequence[Configuration]) -> Array:
    """Return how far up the parameters that carry scale are, together: the mean of their shares of the range."""
    shares = np.zeros(len(found))
    for axis in axes(campaign, scale):
        if axis.carries_scale and axis.low < axis.high:
            values = np.array([float(one.parameters[axis.name]) for one in found])
            shares += (values - axis.low) / (axis.high - axis.low)
    return shares

"""The order of points: whole, repeatable, and balanced wherever it is cut."""

from collections import Counter
from dataclasses import replace

import pytest

from leadline.kit.design import OPTIMIZERS, PRECISIONS, DesignSettings, MeasurementPoint, design_points, expected_step_s
from leadline.kit.specs import LARGE, SPECS

RATES = {"float32": 5e13, "tf32": 3e14, "float16": 6e14, "bfloat16": 6e14}
GPU = DesignSettings("cuda", RATES, ("timm", "transformers"))


@pytest.fixture(scope="module")
def points():
    return design_points(GPU)


def test_points_and_keys_are_unique(points):
    assert len(points) == len({point.key for point in points}) > 3000
    assert [MeasurementPoint(**vars(point)) for point in points] == points


def test_only_the_seed_changes_the_order(points):
    assert design_points(GPU) == points
    other = design_points(DesignSettings("cuda", RATES, ("timm", "transformers"), seed=1))
    assert points[:20] != other[:20]


@pytest.mark.parametrize("count", [1, 7, 15, 31, 59, 60, 97, 150, 211, 300, 424, 600, 1000])
def test_every_prefix_has_equally_many_points_of_each_family(points, count):
    families = Counter(SPECS[point.model].family for point in points[:count])
    assert max(families.values()) - min(families.values()) <= 1
    assert min(count, len({spec.family for spec in SPECS.values()})) == len(families)


@pytest.mark.parametrize("count", [60, 97, 150, 211, 300, 424, 600, 1000])
def test_every_prefix_is_balanced_in_the_other_factors(points, count):
    begun = points[:count]
    training = [point for point in begun if point.phase == "training"]
    assert abs(len(training) - 0.45 * count) <= 0.06 * count + 2  # a decoder's time goes to three phases
    for phase in ("training", "inference"):
        dealt = Counter(point.precision for point in begun if point.phase == phase)
        assert set(dealt) == {name for name in PRECISIONS if name != "fp16" or phase != "training"}
        assert max(dealt.values()) - min(dealt.values()) <= 2 + 0.1 * max(dealt.values())
    rules = Counter((point.optimizer, point.fused) for point in training)
    assert set(OPTIMIZERS) == set(rules)
    assert max(rules.values()) - min(rules.values()) <= 2 + 0.02 * max(rules.values())
    decoder = Counter(point.phase for point in begun if SPECS[point.model].family == "gpt")
    assert max(decoder[phase] for phase in ("training", "prefill", "decode")) - min(decoder.values()) <= 1
    models = Counter(point.model for point in begun)
    for family in {spec.family for spec in SPECS.values()}:
        counts = [models[name] for name, spec in SPECS.items() if spec.family == family]
        assert max(counts) - min(counts) <= 2 + 0.2 * max(counts), family


@pytest.mark.parametrize("count", [60, 150, 300, 600])
def test_every_prefix_has_small_medium_and_large_batches(points, count):
    ladder = {}
    for point in points:
        ladder.setdefault((point.model, point.size, point.phase, point.precision), set()).add(point.batch)
    thirds = Counter()
    for point in points[:count]:
        steps = sorted(ladder[point.model, point.size, point.phase, point.precision])
        thirds[3 * steps.index(point.batch) // len(steps)] += 1
    assert min(thirds.values()) >= 0.2 * count


def test_batches_double_from_one_without_a_gap():
    whole = design_points(DesignSettings("cpu", {"float32": 5e10}, quick=True, longest_step_s=0.05))
    of_one = sorted({p.batch for p in whole if (p.model, p.phase) == ("mlp-mini", "inference")})
    assert of_one == [1, 2, 4, 8, 16, 32, 64]
    trained = {(p.batch, p.optimizer, p.fused) for p in whole if (p.model, p.phase) == ("mlp-mini", "training")}
    assert 6 * len(OPTIMIZERS) == len(trained)  # the design is whole in the end


def test_slow_points_are_left_out():
    slow = DesignSettings("cpu", {"float32": 5e10})
    plain = [replace(point, checkpointing=False) for point in design_points(slow)]
    assert all(expected_step_s(SPECS[p.model], p, slow.rates) <= slow.longest_step_s for p in plain)
    assert not LARGE & {point.model for point in design_points(slow)}
    assert {point.model for point in design_points(GPU)} >= LARGE


def test_unsupported_dtypes_and_missing_packages_are_left_out():
    dealt = design_points(DesignSettings("cuda", {"float32": 1e13, "float16": 1e14}))
    assert {"fp32", "fp16", "amp-fp16"} == {point.precision for point in dealt}
    assert {""} == {SPECS[point.model].package for point in dealt}


def test_pure_half_precision_is_never_trained(points):
    assert not [point for point in points if point.precision == "fp16" and point.phase == "training"]


def test_options_apply_only_to_models_that_support_them(points):
    assert all("channels_last" in SPECS[point.model].traits for point in points if point.channels_last)
    remade = [point for point in points if point.checkpointing]
    assert {"vit", "gpt", "bert", "moe"} == {SPECS[point.model].family for point in remade}
    assert {"training"} == {point.phase for point in remade}
    assert not [point for point in points if point.compiled]
    both = Counter(p.compiled for p in design_points(DesignSettings("cuda", RATES, compiled=True))[:200])
    assert abs(both[True] - both[False]) <= 4


def test_a_quick_design_has_a_small_model_of_every_family():
    dealt = design_points(DesignSettings("cpu", {"float32": 5e10}, quick=True, longest_step_s=0.05))
    assert all(SPECS[point.model].quick for point in dealt)
    assert {s.family for s in SPECS.values() if not s.package} == {SPECS[p.model].family for p in dealt[:12]}


def test_a_key_is_complete_and_without_repetition():
    point = MeasurementPoint("resnet50", 224, "training", "amp-bf16", 32, "adamw", fused=True, channels_last=True)
    assert point.key == "resnet50-224/training/amp-bf16/adamw-fused/channels_last/b32"

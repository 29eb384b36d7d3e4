"""The models of the zoo: what the table says of them holds, and each takes every kind of step."""

import pytest

torch = pytest.importorskip("torch")

from leadline.kit.design import MeasurementPoint
from leadline.kit.measure import PointMeasurer
from leadline.kit.specs import SPECS
from leadline.kit.timing import TimingLimits
from leadline.kit.zoo import build

PUBLISHED = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet50-wide": 68_883_240, "convnext-t": 28_589_128}
"""Parameters of the architectures that these resemble in full."""
UNCOUNTED = ("lstm",)
"""Torch counts no recurrent layer on a device, and every step of it on none."""


def inputs(spec, size, batch=1):
    if spec.kind == "tokens":
        return torch.zeros(batch, size, dtype=torch.long)
    return torch.randn((batch, 3, size, size) if spec.kind == "image" else (batch, size))


@pytest.mark.parametrize(
    "spec", [one for one in SPECS.values() if not one.package and one.family not in UNCOUNTED], ids=lambda one: one.name
)
def test_the_tabulated_work_matches_torchs_count(spec):
    from torch.utils.flop_counter import FlopCounterMode

    size = min(spec.work)
    with torch.device("meta"), torch.no_grad():
        model, given = build(spec.name, size).eval(), inputs(spec, size, 2)
        with FlopCounterMode(display=False) as counter:
            model(given)
    assert spec.work[size] == pytest.approx(counter.get_total_flops() / 2, rel=0.02)


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_model_has_as_many_parameters_as_its_original(name, parameters):
    with torch.device("meta"):
        model = build(name, 224)
    assert sum(one.numel() for one in model.parameters()) == parameters


@pytest.mark.parametrize("spec", [one for one in SPECS.values() if one.quick], ids=lambda one: one.name)
def test_a_small_model_runs_every_kind_of_step(spec):
    bench = PointMeasurer("cpu", None, TimingLimits(0.001, 0.001, 3), ops=True)
    size = min(spec.work)
    marks = {"channels_last": "channels_last" in spec.traits, "checkpointing": "checkpointing" in spec.traits}
    points = [
        MeasurementPoint(spec.name, size, "training", "fp32", 2, "adamw", fused=True, **marks),
        MeasurementPoint(spec.name, size, "training", "fp32", 2, "momentum"),
        *(MeasurementPoint(spec.name, size, phase, "fp32", 2) for phase in spec.phases[1:]),
    ]
    for point in points:
        row = bench.measure(point)
        assert (row["outcome"], row["reason"]) == ("ok", None), point.key
        assert 0 < row["step_quantiles_s"][0] <= row["step_s"] <= row["step_quantiles_s"][-1]
        assert row["ops"]
        assert row["flops"] > 0 or spec.family == "lstm"


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_half_precision_is_used_as_requested(precision):
    from leadline.kit.steps import MeasuredModel

    job = MeasuredModel(MeasurementPoint("mlp-mini", 64, "inference", precision, 2), "cpu")
    assert (torch.bfloat16 if precision == "bf16" else torch.float32) == next(job.model.parameters()).dtype
    assert job.ready()().dtype == torch.bfloat16


def test_decoding_with_the_cache_agrees_with_the_whole_sequence():
    torch.manual_seed(0)
    model = build("gpt-mini", 32).eval()
    tokens = torch.randint(0, 1000, (2, 9))
    with torch.inference_mode():
        whole = model(tokens)
        cache = model.empty_cache(2, 9, torch.float32, torch.device("cpu"))
        prompt = model(tokens[:, :8], cache, 0)
        last = model(tokens[:, 8:], cache, 8)
    assert torch.allclose(whole[:, 7:8], prompt, atol=1e-5)
    assert torch.allclose(whole[:, 8:9], last, atol=1e-5)


def test_checkpointing_changes_no_gradient():
    gradients = []
    for remade in (False, True):
        torch.manual_seed(0)
        model = build("gpt-mini", 32).train()
        model.stack.checkpointing = remade
        model(torch.arange(32)[None]).square().mean().backward()
        gradients.append([one.grad.clone() for one in model.parameters()])
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in zip(*gradients, strict=True))


def test_a_window_token_attends_to_neighbors_but_not_the_opposite_edge():
    from leadline.kit.zoo.transformers import WindowBlock

    torch.manual_seed(0)
    block = WindowBlock(32, 1, side=8, window=4, shifted=True).eval()
    image = torch.randn(1, 8, 8, 32)
    moved = image.clone()
    moved[0, 0, 0] = torch.randn(32)
    changed = ((block(moved) - block(image)).abs().amax(-1) > 1e-4)[0]
    assert changed[0, 0]
    assert changed[1, 1]  # of the same window
    assert not changed[7, 7]  # which the roll puts beside it
    assert not changed[4, 4]


@pytest.mark.parametrize("spec", [one for one in SPECS.values() if one.package], ids=lambda one: one.name)
@pytest.mark.slow
def test_a_named_model_is_built_with_random_weights_and_stepped(spec):
    pytest.importorskip(spec.package, reason=f"{spec.package} is not installed", exc_type=ImportError)
    size = 32 if spec.kind == "tokens" else min(spec.work)
    row = PointMeasurer("cpu", None, TimingLimits(0.0, 0.0, 1), ops=False).measure(
        MeasurementPoint(spec.name, size, "inference", "fp32", 1)
    )
    assert row["outcome"] == "ok", row["reason"]
    assert SPECS[spec.name] is spec


def test_fast_weight_init_has_torchs_spread():
    from torch.nn import init

    from leadline.kit.steps import fast_weight_init

    before = init.kaiming_uniform_
    torch.manual_seed(0)
    with fast_weight_init("cpu"):
        filled = torch.nn.Linear(1024, 3000)
    assert init.kaiming_uniform_ is before
    usual = torch.nn.Linear(1024, 3000)
    for one in (filled.weight, filled.bias):
        assert torch.isfinite(one).all()
    assert usual.weight.std().item() == pytest.approx(filled.weight.std().item(), rel=0.02)
    assert filled.weight.flatten()[-1] != 0  # what is left behind the last whole block is filled too
    with fast_weight_init("cuda"):
        assert init.kaiming_uniform_ is before


def test_a_step_without_profile_keeps_its_time(monkeypatch):
    from leadline.kit import measure

    def refuse(*_):
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(measure, "profile_ops", refuse)
    bench = PointMeasurer("cpu", None, TimingLimits(0.0, 0.0, 1), ops=True)
    row = bench.measure(MeasurementPoint("mlp-mini", 64, "inference", "fp32", 2))
    assert (row["outcome"], row["ops"]) == ("ok", None)
    assert row["step_s"] > 0
    assert row["ops_reason"] == "RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"

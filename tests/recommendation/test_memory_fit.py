"""The largest batch for any memory curve, and changes that need less memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.estimate import Interval
from leadline.core.fit import ChangeCost, format_probability
from leadline.core.workload import (
    Adapters,
    InputShape,
    ModelKind,
    ModelSource,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Quantization,
    Recompute,
    Sharding,
    Workload,
)
from leadline.recommendation.memory_fit import LARGEST, check_memory, largest_batch, memory_saving_ladders, with_batch

GIB = 2.0**30


@given(st.floats(0, 50), st.floats(0.001, 5), st.integers(1, 4096), st.floats(1, 100))
def test_the_largest_batch_is_exact_for_linear_memory(base, slope, start, there):
    def needed(batch):
        return base + slope * batch

    found = largest_batch(needed, there, start)
    assert needed(found) <= there or found == 0
    assert needed(found + 1) > there


@given(st.integers(1, 400), st.integers(0, 2**32), st.floats(1, 300))
def test_the_largest_batch_is_exact_for_any_growing_memory(start, seed, available):
    steps = 3 * np.random.default_rng(seed).random(500) ** 4 + 0.01
    total = [0.0, *np.cumsum(steps).tolist()]

    def needed(batch):
        return total[batch] if batch < len(total) else total[-1] + batch

    batch = largest_batch(needed, available, start)
    assert batch == 0 or needed(batch) <= available
    assert needed(batch + 1) > available or batch == LARGEST


def test_linear_memory_takes_few_tries():
    tried = []

    def needed(batch):
        tried.append(batch)
        return 2 * GIB + batch * 0.037 * GIB

    assert largest_batch(needed, 16 * GIB, 16) == 378
    assert len(tried) <= 6


def test_tiny_jobs_end_at_the_largest_batch_tried():
    assert largest_batch(lambda _: 1.0, 2.0, 4) == LARGEST


def test_a_check_has_the_need_at_the_risk_and_the_probability_of_running_out():
    memory = Interval(10 * GIB, 9 * GIB, 12 * GIB)
    loose, strict = check_memory("GPU", memory, 11 * GIB, 0.2), check_memory("GPU", memory, 11 * GIB, 0.01)
    assert loose.needed_bytes < strict.needed_bytes
    assert loose.fits
    assert not strict.fits
    assert 0.01 < loose.risk == strict.risk < 0.2
    assert check_memory("GPU", memory, None, 0.05).needed_bytes == pytest.approx(12 * GIB)


def test_an_unknown_memory_fits_neither_well_nor_badly():
    commands = check_memory("GPU", Interval(10 * GIB, 9 * GIB, 12 * GIB), None, 0.05)
    assert commands.fits is None
    assert commands.risk is None


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1])
def test_a_risk_outside_zero_to_one_is_refused(risk):
    with pytest.raises(InvalidInput, match="a risk of"):
        check_memory("GPU", Interval(1.0, 1.0, 2.0), 3.0, risk)


@pytest.mark.parametrize(
    ("risk", "written"), [(0.0, "less than 0.1%"), (0.011, "1.1%"), (0.5, "50%"), (0.9999, "more than 99.9%")]
)
def test_no_probability_is_written_as_certain(risk, written):
    assert written == format_probability(risk)


CONFIG = Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"), batch=8, sequence=512, precision=Precision.FP32)
BF16 = frozenset({"float32", "bfloat16", "float16"})
FP16 = frozenset({"float32", "float16"})


def options(workload, dtypes=BF16, batch=8):
    ladders = memory_saving_ladders(workload, batch, dtypes)
    return [[" ".join(variant.options) for variant in ladder] for ladder in ladders]


def every(workload, dtypes=BF16, batch=8):
    return [variant for ladder in memory_saving_ladders(workload, batch, dtypes) for variant in ladder]


def test_the_samples_of_a_step_stay_the_same():
    for variant in every(CONFIG):
        work = variant.workload
        assert work.batch * work.accumulation * work.parallelism.copies(work.gpus) == 8, variant.options


def test_passes_get_smaller_down_to_one_sample():
    assert ["--batch 4 --accumulate 2", "--batch 2 --accumulate 4", "--batch 1 --accumulate 8"] in options(CONFIG)
    assert ["--batch 3 --accumulate 2"] in options(with_batch(CONFIG, 6), batch=6)
    assert not any("--batch" in option for ladder in options(with_batch(CONFIG, 7), batch=7) for option in ladder
                   if "--gpus" not in option)  # fmt: skip


def test_a_device_without_bfloat16_computes_in_float16():
    assert any("--precision amp-bf16" in ladder[0] for ladder in options(CONFIG))
    commands = [option for ladder in options(CONFIG, FP16) for option in ladder]
    assert any("--precision amp-fp16" in command for command in commands)
    assert not any("bf16" in command for command in commands)


def test_changes_already_made_are_not_proposed():
    done = with_batch(
        Workload(CONFIG.model, batch=1, precision=Precision.BF16, recompute=Recompute.FULL, optimizer=Optimizer.SGD,
                 adapters=Adapters(16), quantization=Quantization.NF4), 1
    )  # fmt: skip
    assert [variant for variant in every(done, batch=1) if variant.cost is not ChangeCost.HARDWARE] == []


def test_a_configuration_without_a_precision_is_in_bfloat16_already():
    commands = [option for ladder in options(Workload(CONFIG.model, batch=8)) for option in ladder]
    assert not any("--precision" in command for command in commands)


def test_other_optimizers_are_marked_as_changing_the_results():
    rules = {variant.options[1]: variant for variant in every(CONFIG) if variant.options[0] == "--optimizer"}
    assert set(rules) == {"adamw8bit", "lion", "sgd"}
    assert all(variant.cost is ChangeCost.RESULTS for variant in rules.values())
    assert "2 copies of the weights less" in rules["sgd"].description


def test_a_state_in_eight_bits_is_proposed_for_adam_in_a_configuration_only():
    momentum = replace(CONFIG, optimizer=Optimizer.MOMENTUM)
    function = replace(CONFIG, model=ModelSource(ModelKind.FUNCTION, "a.py:f"))
    assert any("adamw8bit" in variant.options for variant in every(CONFIG))
    assert not any("adamw8bit" in variant.options for work in (momentum, function) for variant in every(work))


def test_an_optimizer_with_equal_state_is_not_proposed():
    """Beside bfloat16 weights, lion's one copy in bfloat16 is as large as two in eight bits."""
    work = replace(CONFIG, precision=Precision.BF16, optimizer=Optimizer.ADAMW_8BIT)
    rules = {variant.options[1] for variant in every(work) if variant.options[0] == "--optimizer"}
    assert rules == {"sgd"}


def test_adapters_come_before_weights_in_eight_and_in_four_bits():
    work = replace(CONFIG, precision=Precision.BF16)
    assert ["--lora 16", "--lora 16 --quantize 8bit", "--lora 16 --quantize 4bit"] in options(work)
    adapted = [variant for variant in every(work) if "--lora" in variant.options]
    assert {variant.cost for variant in adapted} == {ChangeCost.RESULTS}
    assert all(variant.workload.adapters is not None for variant in adapted)


def test_weights_in_few_bits_compute_in_sixteen():
    quantized = [variant for variant in every(CONFIG, FP16) if "--quantize" in variant.options]
    assert {variant.workload.precision for variant in quantized} == {Precision.FP16, Precision.AMP_FP16}


def test_adapted_weights_are_quantized_but_not_adapted_again():
    work = replace(CONFIG, precision=Precision.BF16, adapters=Adapters(8))
    assert ["--quantize 8bit", "--quantize 4bit"] in options(work)
    assert not any("--lora" in variant.options for variant in every(work))
    done = replace(work, quantization=Quantization.NF4)
    assert not any("--quantize" in variant.options for variant in every(done))


def test_nothing_is_adapted_in_inference_in_a_function_or_across_stages():
    for work in (
        replace(CONFIG, phase=Phase.INFERENCE),
        replace(CONFIG, model=ModelSource(ModelKind.FUNCTION, "a.py:f")),
        replace(CONFIG, gpus=2, parallelism=Parallelism(pipeline=2)),
    ):
        assert not any("--lora" in variant.options for variant in every(work))


def test_more_gpus_share_the_batch_and_the_weights():
    variant = next(variant for variant in every(CONFIG) if variant.options[:2] == ("--gpus", "4"))
    work = variant.workload
    assert (work.gpus, work.batch, work.parallelism.sharding) == (4, 2, Sharding.FULL)
    assert variant.cost is ChangeCost.HARDWARE
    shared = Workload(CONFIG.model, batch=8, gpus=4, parallelism=Parallelism(sharding=Sharding.FULL))
    assert not any("--gpus" in variant.options for variant in every(shared))


def test_inference_uses_smaller_batches_or_shares_layers():
    work = Workload(CONFIG.model, phase=Phase.INFERENCE, batch=4, precision=Precision.FP32)
    commands = [option for ladder in options(work, batch=4) for option in ladder]
    assert "--batch 2" in commands
    assert "--precision bf16" in commands
    assert "--gpus 2 --tensor-parallel 2" in commands
    assert not any(
        "--accumulate" in command or "--optimizer" in command or "--checkpointing" in command for command in commands
    )


@pytest.mark.parametrize("kind", [ModelKind.COMMAND, ModelKind.ONNX, ModelKind.HLO])
def test_scripts_and_files_are_not_changed(kind):
    assert every(Workload(ModelSource(kind, "it"), batch=8)) == []


def test_the_inputs_of_a_function_follow_the_batch():
    work = Workload(ModelSource(ModelKind.FUNCTION, "a.py:f"), batch=8, inputs=(InputShape((8, 3, 4, 4)),))
    changed = with_batch(work, 2)
    assert (changed.batch, changed.inputs[0].shape) == (2, (2, 3, 4, 4))

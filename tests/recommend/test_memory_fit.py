"""The largest batch is the largest one, whatever memory does between two batches, and is found in few tries."""

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
    Sharding,
    Workload,
)
from leadline.recommendation.memory_fit import LARGEST, check_memory, largest_batch, memory_saving_ladders, with_batch

GIB = 2.0**30


@given(st.floats(0, 50), st.floats(0.001, 5), st.integers(1, 4096), st.floats(1, 100))
def test_it_is_the_largest_of_a_straight_line(base, slope, start, there):
    def needed(batch):
        return base + slope * batch

    found = largest_batch(needed, there, start)
    assert needed(found) <= there or found == 0
    assert needed(found + 1) > there


@given(st.integers(1, 400), st.integers(0, 2**32), st.floats(1, 300))
def test_it_is_the_largest_of_anything_that_grows(start, seed, there):
    steps = 3 * np.random.default_rng(seed).random(500) ** 4 + 0.01
    total = [0.0, *np.cumsum(steps).tolist()]

    def needed(batch):
        return total[batch] if batch < len(total) else total[-1] + batch

    found = largest_batch(needed, there, start)
    assert found == 0 or needed(found) <= there
    assert needed(found + 1) > there or found == LARGEST


def test_a_straight_line_takes_few_tries():
    asked = []

    def needed(batch):
        asked.append(batch)
        return 2 * GIB + batch * 0.037 * GIB

    assert largest_batch(needed, 16 * GIB, 16) == 378
    assert len(asked) <= 6


def test_what_needs_hardly_any_memory_ends_at_the_largest_that_is_asked():
    assert largest_batch(lambda _: 1.0, 2.0, 4) == LARGEST


def test_the_check_says_what_is_needed_at_the_risk_and_how_likely_it_is_not_enough():
    memory = Interval(10 * GIB, 9 * GIB, 12 * GIB)
    loose, strict = check_memory("GPU", memory, 11 * GIB, 0.2), check_memory("GPU", memory, 11 * GIB, 0.01)
    assert loose.needed_bytes < strict.needed_bytes
    assert loose.fits
    assert not strict.fits
    assert 0.01 < loose.risk == strict.risk < 0.2
    assert "to spare" in loose.sentence
    assert "too little" in strict.sentence
    assert pytest.approx(12 * GIB) == check_memory("GPU", memory, None, 0.05).needed_bytes


def test_an_unknown_memory_fits_neither_well_nor_badly():
    told = check_memory("GPU", Interval(10 * GIB, 9 * GIB, 12 * GIB), None, 0.05)
    assert told.fits is None
    assert told.risk is None
    assert "how much is there is not known" in told.sentence


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1])
def test_a_risk_that_is_none_is_refused(risk):
    with pytest.raises(InvalidInput, match="a risk of"):
        check_memory("GPU", Interval(1.0, 1.0, 2.0), 3.0, risk)


@pytest.mark.parametrize(
    ("risk", "written"), [(0.0, "less than 0.1%"), (0.011, "1.1%"), (0.5, "50%"), (0.9999, "more than 99.9%")]
)
def test_no_risk_is_written_as_certain(risk, written):
    assert written == format_probability(risk)


CONFIG = Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"), batch=8, sequence=512, precision=Precision.FP32)
BF16 = frozenset({"float32", "bfloat16", "float16"})
FP16 = frozenset({"float32", "float16"})


def options(workload, dtypes=BF16, batch=8):
    return [[" ".join(one.options) for one in ladder] for ladder in memory_saving_ladders(workload, batch, dtypes)]


def every(workload, dtypes=BF16, batch=8):
    return [one for ladder in memory_saving_ladders(workload, batch, dtypes) for one in ladder]


def test_the_samples_of_a_step_stay_the_same():
    for one in every(CONFIG):
        work = one.workload
        assert work.batch * work.accumulation * work.parallelism.copies(work.gpus) == 8, one.options


def test_passes_get_smaller_down_to_one_sample():
    assert ["--batch 4 --accumulate 2", "--batch 2 --accumulate 4", "--batch 1 --accumulate 8"] in options(CONFIG)
    assert ["--batch 3 --accumulate 2"] in options(with_batch(CONFIG, 6), batch=6)
    assert not any("--batch" in option for ladder in options(with_batch(CONFIG, 7), batch=7) for option in ladder
                   if "--gpus" not in option)  # fmt: skip


def test_a_device_without_bfloat16_computes_in_float16():
    assert any("--precision amp-bf16" in ladder[0] for ladder in options(CONFIG))
    told = [option for ladder in options(CONFIG, FP16) for option in ladder]
    assert any("--precision amp-fp16" in one for one in told)
    assert not any("bf16" in one for one in told)


def test_what_is_done_already_is_not_proposed_again():
    done = with_batch(
        Workload(CONFIG.model, batch=1, precision=Precision.BF16, checkpointing=True, optimizer=Optimizer.SGD,
                 adapters=Adapters(16), quantization=Quantization.NF4), 1
    )  # fmt: skip
    assert [one for one in every(done, batch=1) if one.asks is not ChangeCost.HARDWARE] == []


def test_a_configuration_without_a_precision_is_in_bfloat16_already():
    told = [option for ladder in options(Workload(CONFIG.model, batch=8)) for option in ladder]
    assert not any("--precision" in one for one in told)


def test_other_update_rules_are_told_to_change_the_results():
    rules = {one.options[1]: one for one in every(CONFIG) if one.options[0] == "--optimizer"}
    assert {"adamw8bit", "lion", "sgd"} == set(rules)
    assert all(one.asks is ChangeCost.RESULTS for one in rules.values())
    assert "2 copies of the weights less" in rules["sgd"].what


def test_a_state_in_eight_bits_is_proposed_for_adam_in_a_configuration_only():
    momentum = replace(CONFIG, optimizer=Optimizer.MOMENTUM)
    function = replace(CONFIG, model=ModelSource(ModelKind.FUNCTION, "a.py:f"))
    assert any("adamw8bit" in one.options for one in every(CONFIG))
    assert not any("adamw8bit" in one.options for work in (momentum, function) for one in every(work))


def test_a_rule_whose_state_takes_as_much_is_no_help():
    """Beside bfloat16 weights, lion's one copy in bfloat16 is as large as two in eight bits."""
    work = replace(CONFIG, precision=Precision.BF16, optimizer=Optimizer.ADAMW_8BIT)
    rules = {one.options[1] for one in every(work) if one.options[0] == "--optimizer"}
    assert {"sgd"} == rules


def test_adapters_come_before_weights_in_eight_and_in_four_bits():
    work = replace(CONFIG, precision=Precision.BF16)
    assert ["--lora 16", "--lora 16 --quantize 8bit", "--lora 16 --quantize 4bit"] in options(work)
    asked = [one for one in every(work) if "--lora" in one.options]
    assert {ChangeCost.RESULTS} == {one.asks for one in asked}
    assert all(one.workload.adapters is not None for one in asked)


def test_weights_in_few_bits_compute_in_sixteen():
    asked = [one for one in every(CONFIG, FP16) if "--quantize" in one.options]
    assert {Precision.FP16, Precision.AMP_FP16} == {one.workload.precision for one in asked}


def test_adapted_weights_are_quantized_but_not_adapted_again():
    work = replace(CONFIG, precision=Precision.BF16, adapters=Adapters(8))
    assert ["--quantize 8bit", "--quantize 4bit"] in options(work)
    assert not any("--lora" in one.options for one in every(work))
    done = replace(work, quantization=Quantization.NF4)
    assert not any("--quantize" in one.options for one in every(done))


def test_nothing_is_adapted_in_inference_in_a_function_or_across_stages():
    for work in (
        replace(CONFIG, phase=Phase.INFERENCE),
        replace(CONFIG, model=ModelSource(ModelKind.FUNCTION, "a.py:f")),
        replace(CONFIG, gpus=2, parallelism=Parallelism(pipeline=2)),
    ):
        assert not any("--lora" in one.options for one in every(work))


def test_gpus_share_out_the_batch_and_the_weights():
    one = next(one for one in every(CONFIG) if one.options[:2] == ("--gpus", "4"))
    assert (one.workload.gpus, one.workload.batch, one.workload.parallelism.sharding) == (4, 2, Sharding.FULL)
    assert ChangeCost.HARDWARE is one.asks
    shared = Workload(CONFIG.model, batch=8, gpus=4, parallelism=Parallelism(sharding=Sharding.FULL))
    assert not any("--gpus" in one.options for one in every(shared))


def test_inference_answers_in_smaller_batches_or_shares_layers():
    work = Workload(CONFIG.model, phase=Phase.INFERENCE, batch=4, precision=Precision.FP32)
    told = [option for ladder in options(work, batch=4) for option in ladder]
    assert "--batch 2" in told
    assert "--precision bf16" in told
    assert "--gpus 2 --tensor-parallel 2" in told
    assert not any("--accumulate" in one or "--optimizer" in one or "--checkpointing" in one for one in told)


@pytest.mark.parametrize("kind", [ModelKind.COMMAND, ModelKind.ONNX, ModelKind.HLO])
def test_what_stands_in_a_file_or_a_script_is_not_changed(kind):
    assert every(Workload(ModelSource(kind, "it"), batch=8)) == []


def test_the_inputs_of_a_function_follow_the_batch():
    work = Workload(ModelSource(ModelKind.FUNCTION, "a.py:f"), batch=8, inputs=(InputShape((8, 3, 4, 4)),))
    changed = with_batch(work, 2)
    assert (changed.batch, changed.inputs[0].shape) == (2, (2, 3, 4, 4))

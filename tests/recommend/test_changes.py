"""Changes keep the samples of a step, apply where they can, and each list of them needs less and less memory."""

from dataclasses import replace

import pytest

from leadline.core.fit import Cost
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
from leadline.recommend.changes import at_batch, ladders

CONFIG = Workload(ModelSource(ModelKind.HF_CONFIG, "config.json"), batch=8, sequence=512, precision=Precision.FP32)
BF16 = frozenset({"float32", "bfloat16", "float16"})
FP16 = frozenset({"float32", "float16"})


def options(workload, dtypes=BF16, batch=8):
    return [[" ".join(one.options) for one in ladder] for ladder in ladders(workload, batch, dtypes)]


def every(workload, dtypes=BF16, batch=8):
    return [one for ladder in ladders(workload, batch, dtypes) for one in ladder]


def test_the_samples_of_a_step_stay_the_same():
    for one in every(CONFIG):
        work = one.workload
        assert work.batch * work.accumulation * work.parallelism.copies(work.gpus) == 8, one.options


def test_passes_get_smaller_down_to_one_sample():
    assert ["--batch 4 --accumulate 2", "--batch 2 --accumulate 4", "--batch 1 --accumulate 8"] in options(CONFIG)
    assert ["--batch 3 --accumulate 2"] in options(at_batch(CONFIG, 6), batch=6)
    assert not any("--batch" in option for ladder in options(at_batch(CONFIG, 7), batch=7) for option in ladder
                   if "--gpus" not in option)  # fmt: skip


def test_a_device_without_bfloat16_computes_in_float16():
    assert any("--precision amp-bf16" in ladder[0] for ladder in options(CONFIG))
    told = [option for ladder in options(CONFIG, FP16) for option in ladder]
    assert any("--precision amp-fp16" in one for one in told)
    assert not any("bf16" in one for one in told)


def test_what_is_done_already_is_not_proposed_again():
    done = at_batch(
        Workload(CONFIG.model, batch=1, precision=Precision.BF16, checkpointing=True, optimizer=Optimizer.SGD,
                 adapters=Adapters(16), quantization=Quantization.NF4), 1
    )  # fmt: skip
    assert [one for one in every(done, batch=1) if one.asks is not Cost.HARDWARE] == []


def test_a_configuration_without_a_precision_is_in_bfloat16_already():
    told = [option for ladder in options(Workload(CONFIG.model, batch=8)) for option in ladder]
    assert not any("--precision" in one for one in told)


def test_other_update_rules_are_told_to_change_the_results():
    rules = {one.options[1]: one for one in every(CONFIG) if one.options[0] == "--optimizer"}
    assert {"adamw8bit", "lion", "sgd"} == set(rules)
    assert all(one.asks is Cost.RESULTS for one in rules.values())
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
    assert {Cost.RESULTS} == {one.asks for one in asked}
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
    assert Cost.HARDWARE is one.asks
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
    changed = at_batch(work, 2)
    assert (changed.batch, changed.inputs[0].shape) == (2, (2, 3, 4, 4))

"""A saved module becomes the op graph of its step: products, loops, library calls, traffic and memory."""

import importlib.util
from pathlib import Path

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind, Stage, StorageCategory
from leadline.core.workload import Dataset, ModelKind, ModelSource, Phase, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.graphs.hlo.read import read_hlo, traced_job

SPEC = importlib.util.spec_from_file_location("texts", Path(__file__).parent / "texts.py")
texts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(texts)


def job(text, phase=Phase.INFERENCE, device_type="cuda", samples=None):
    workload = Workload(ModelSource(ModelKind.HLO, "step.mlir"), phase=phase, dataset=Dataset(samples=samples))
    return traced_job(text, workload, device_type=device_type)


def kinds(graph):
    return [op.kind for op in graph.ops]


def loop(start="0", step="1", limit="%c_1"):
    return texts.LOOP.replace("START", start).replace("STEP", step).replace("LIMIT", limit)


def test_a_product_has_its_sizes_and_calls_are_inlined():
    graph = job(texts.MLP).step
    product, activation = graph.ops
    assert product.dims == {"b": 1, "m": 32, "n": 128, "k": 64}
    assert product.flops == 2 * 32 * 64 * 128
    assert OpKind.ELEMENTWISE is activation.kind
    assert activation.sources == (0,)


def test_a_fused_chain_reads_its_inputs_and_writes_its_last_result():
    chain = job(texts.MLP).step.ops[1]
    assert chain.bytes_read == 4 * (32 * 128 + 128)
    assert chain.bytes_written == 4 * 32 * 128


def test_float32_products_take_tf32_on_a_gpu_unless_the_text_asks_for_more():
    assert job(texts.MLP).step.ops[0].dtype == "tf32"
    assert job(texts.MLP, device_type="cpu").step.ops[0].dtype == "float32"
    assert job(texts.MLP.replace("DEFAULT, DEFAULT", "HIGHEST, HIGHEST")).step.ops[0].dtype == "float32"


def test_weights_are_the_floating_arguments_that_are_not_on_the_left_of_a_product():
    graph = job(texts.MLP).step
    assert graph.parameters == 64 * 128 + 128
    assert 4 * graph.parameters == graph.parameter_bytes


def test_the_batch_is_the_first_dimension_of_the_inputs_if_there_are_samples():
    assert job(texts.MLP).loop.batch is None
    assert job(texts.MLP, samples=1000).loop.batch == 32


def test_the_generic_form_gives_the_same_graph_and_row_sums_are_fused():
    graph = job(texts.GENERIC).step
    assert kinds(graph) == [OpKind.GEMM, OpKind.REDUCTION]
    assert graph.ops[0].flops == 2 * 8 * 16 * 16
    assert graph.ops[1].flops == 8 * 15 + 8 * 16
    assert graph.ops[1].bytes_read == 4 * 8 * 16


@pytest.mark.parametrize(("start", "step", "trips"), [("0", "1", 10), ("4", "1", 6), ("0", "3", 4), ("10", "1", 0)])
def test_a_loop_counts_its_body_once_a_trip(start, step, trips):
    graph = job(loop(start, step)).step
    assert trips * 2 * 32 * 64 * 64 == graph.flops
    assert graph.fallbacks == {}


def test_a_loop_that_data_ends_counts_once_with_a_note():
    traced = job(loop(limit="%arg2"))
    assert traced.step.flops == 2 * 32 * 64 * 64
    assert sum(traced.step.fallbacks.values()) == 1
    assert any("depends on data" in note for note in traced.notes)


def test_a_loop_that_never_reaches_its_bound_counts_once():
    assert any("depends on data" in note for note in job(loop(step="-1")).notes)


def test_a_convolution_counts_each_tap_and_zeros_between_elements_are_not_multiplied():
    once = job(texts.CONV.replace("OUT", "8x16x16x64").replace("D, D", "1, 1")).step.ops[0]
    assert once.flops == 2 * 8 * 16 * 16 * 64 * 32 * 9
    sizes = {"n": 8, "c": 32, "k": 64, "h": 16, "w": 16, "r": 3, "s": 3, "groups": 1, "stride": 1, "dilation": 1}
    assert sizes == once.dims
    spread = job(texts.CONV.replace("OUT", "8x31x31x64").replace("D, D", "2, 2")).step.ops[0]
    assert once.flops == spread.flops
    assert spread.dims["stride"] == 2


def test_the_gradient_of_a_convolutions_weights_has_the_sizes_of_the_convolution():
    gradient = job(texts.WEIGHT_GRADIENT).step.ops[0]
    sizes = {"n": 8, "c": 16, "k": 64, "h": 16, "w": 16, "r": 3, "s": 3, "groups": 1, "stride": 2, "dilation": 1}
    assert sizes == gradient.dims
    assert gradient.flops == 2 * 8 * 16 * 16 * 64 * 16 * 9


def test_a_compiled_module_keeps_its_kernels():
    graph = job(texts.COMPILED, Phase.TRAINING).step
    assert kinds(graph) == [OpKind.GEMM, OpKind.COMMUNICATION, OpKind.COPY, OpKind.OPTIMIZER]
    assert [op.stage for op in graph.ops] == [Stage.BACKWARD, Stage.FORWARD, Stage.FORWARD, Stage.OPTIMIZER]
    assert graph.ops[0].flops == 2 * 256 * 256 * 64
    assert graph.ops[1].dims == {"bytes": 4 * 256 * 256, "ranks": 4}
    assert graph.ops[1].name == "xla.all_reduce"
    assert graph.ops[3].flops == 2 * 256 * 256


def test_a_librarys_workspace_is_no_traffic():
    assert job(texts.COMPILED, Phase.TRAINING).step.ops[0].bytes_written == 4 * 256 * 256


def test_a_sliced_operand_is_read_by_its_slice():
    copy = job(texts.COMPILED, Phase.TRAINING).step.ops[2]
    assert pytest.approx(copy.bytes_read, abs=8) == 4 * 256 * 256


def test_the_part_of_one_device_asks_for_all_devices():
    assert any("--gpus 4" in note for note in job(texts.COMPILED, Phase.TRAINING).notes)


def test_a_collective_within_one_devices_part_has_its_bytes_and_ranks():
    product, reduced = job(texts.DIVIDED).step.ops
    assert product.flops == 2 * 64 * 64 * 16
    assert reduced.dims == {"bytes": 4 * 64 * 64, "ranks": 4}
    assert any("--gpus 4" in note for note in job(texts.DIVIDED).notes)
    named = texts.DIVIDED.replace("(%arg1: tensor<64x16xf32>)", '(%arg1: tensor<64x16xf32> loc("x"))')
    assert product.flops == job(named).step.ops[0].flops


def test_a_module_for_several_devices_that_is_not_partitioned_has_a_note():
    text = texts.MLP.replace("num_partitions = 1", "num_partitions = 8")
    assert any("8 devices and not partitioned" in note for note in job(text).notes)


def test_the_larger_branch_of_a_condition_is_counted_with_a_note():
    traced = job(texts.CHOICE)
    assert traced.step.flops == 2 * 64**3
    assert any("branch" in note for note in traced.notes)


def test_several_results_of_one_operation_are_separate():
    graph = job(texts.TOP).step
    assert len(graph.ops) == 1
    assert graph.ops[0].bytes_written == 4 * 64 * (5 + 5)


def test_library_calls_are_known_and_an_unknown_call_is_named():
    traced = job(texts.ATTENTION)
    attention, strange, convolution = traced.step.ops
    assert attention.dims == {"b": 2, "h": 12, "q": 512, "kv": 512, "d": 64}
    assert attention.flops == 4 * 2 * 12 * 512 * 512 * 64
    assert OpKind.OTHER is strange.kind
    assert convolution.flops == 2 * 8 * 16 * 16 * 64 * 32 * 9
    assert any("my_kernel" in note for note in traced.notes)
    assert not any("fmha" in note for note in traced.notes)


def test_values_in_the_on_chip_memory_of_a_tpu_cost_no_traffic():
    graph = job(texts.TPU).step
    fetch, negate, product, add = graph.ops
    size = 4 * 256 * 256
    assert (size, 0) == (fetch.bytes_read, fetch.bytes_written)
    assert (0, size) == (negate.bytes_read, negate.bytes_written)
    assert (size, size) == (add.bytes_read, add.bytes_written)
    assert product.bytes_written == 0


def test_a_convolution_that_is_really_a_batched_product_counts_as_one():
    product = job(texts.TPU).step.ops[2]
    assert OpKind.GEMM is product.kind
    assert product.dims == {"b": 8, "m": 32, "n": 128, "k": 64}
    assert product.flops == 2 * 8 * 32 * 128 * 64


def test_state_that_no_product_reads_is_the_optimizers_and_its_update_is_one_kernel():
    graph = job(texts.ADAM, Phase.TRAINING).step
    update = graph.ops[-1]
    size = 4 * 1024 * 256
    assert OpKind.OPTIMIZER is update.kind
    assert 3 * size == update.bytes_read
    assert 2 * size == update.bytes_written
    assert graph.parameters == 1024 * 256
    by_category = peak_memory(graph).by_category
    assert size == by_category[StorageCategory.PARAMETER]
    assert size == by_category[StorageCategory.OPTIMIZER_STATE]


def test_all_memory_but_arguments_and_results_is_freed():
    graph = job(texts.MLP).step
    left = sum(event.size_bytes for event in graph.events)
    assert left == 4 * (64 * 128 + 128 + 32 * 64) + 4 * 32 * 128
    assert peak_memory(graph).allocated_bytes == 4 * (64 * 128 + 128 + 32 * 64 + 2 * 32 * 128)


def test_a_forward_pass_is_refused_as_training():
    with pytest.raises(InvalidInput, match="add --phase inference"):
        job(texts.MLP, Phase.TRAINING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "has no func.func"),
        ("HloModule x\n", "no ENTRY line"),
        (texts.MLP.replace("32x64xf32", "?x64xf32"), "a size that is not fixed"),
        (texts.MLP.replace("32x64xf32", "32x64xq7"), "'q7' is unknown"),
        (texts.MLP.replace("@relu(%arg0", "@other(%arg0"), "relu is called but missing"),
        (texts.MLP.rpartition("    return")[0], "ends within a function"),
        (texts.MLP.replace("%2 = stablehlo", "%9 = stablehlo"), "2 is read before it is made"),
        (texts.COMPILED.replace("fusion(%Arg_2.1, %Arg_3.1)", "fusion"), "ends before its operands"),
    ],
)
def test_a_broken_text_is_one_plain_error(text, message):
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(")):
        job(text)


def test_a_file_that_is_not_text_is_an_error_with_the_fix(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_bytes(b"ML\xefR\x01")
    with pytest.raises(InvalidInput, match="is MLIR bytecode"):
        read_hlo(Workload(ModelSource(ModelKind.HLO, str(path)), phase=Phase.INFERENCE))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not text in UTF-8"):
        read_hlo(Workload(ModelSource(ModelKind.HLO, str(path)), phase=Phase.INFERENCE))

"""Steps divided over GPUs: known shares of time and memory, and what must grow or shrink with more of them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.graph import Op, OpGraph, OpKind, Stage, StorageCategory, StorageEvent, TracedJob
from leadline.core.hardware import Device, DeviceKind
from leadline.core.workload import ModelKind, ModelSource, Parallelism, Phase, Precision, Recompute, Sharding, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.estimators.memory.host import host_memory
from leadline.estimators.parallelism.divided_memory import divide_memory, exchange_buffers
from leadline.estimators.parallelism.division import divide_step
from leadline.estimators.parallelism.fabric import Fabric, job_fabric, make_ring
from leadline.estimators.white_box import WhiteBox
from leadline.graphs.hf_config.expand import expand

A100 = Device("A100 SXM", "nvidia", DeviceKind.GPU, 80 * 10**9, 2.039e12,
              {"float32": 19.5e12, "float16": 312e12, "bfloat16": 312e12}, "Ampere", compute_units=108, tdp_w=400,
              form_factor="SXM4", link_bytes_per_s=600e9, pcie_generation=4)  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5504, "num_attention_heads": 16,
         "num_hidden_layers": 16, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
PLAIN = Workload(ModelSource(ModelKind.FUNCTION, "net.py:build"))
GRADIENTS = TracedJob(OpGraph((), parameter_bytes=2 * 10**9))


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(LLAMA))
    workload = Workload(
        ModelSource(ModelKind.HF_CONFIG, str(path)), batch=4, sequence=2048, precision=Precision.BF16, accumulation=8
    )
    return workload, expand(workload)


def over(workload, gpus, tensor=1, pipeline=1, sharding=Sharding.NONE):
    return replace(workload, gpus=gpus, parallelism=Parallelism(tensor, pipeline, sharding))


def network(nodes, low=200e9, high=200e9):
    return {"fabric": Fabric(nodes, 200e9, low, high, nodes=nodes)}


def test_tensor_parallel_gpus_share_the_computing(job):
    workload, traced = job
    found = divide_step(over(workload, 8, tensor=8), traced, A100, 8.0)
    assert found.step_s - found.exposed_s == pytest.approx(1.0)
    assert set(found.sent_s) == {"tensor parallelism"}


def test_tensor_parallelism_reduces_activations_four_times_a_layer(job):
    """16 layers, 8 microbatches of 4 × 2,048 tokens, 2,048 wide, 2 bytes."""
    workload, traced = job
    message_s = make_ring(A100, 8).all_reduce_s(4 * 2048 * 2048 * 2)
    found = divide_step(over(workload, 8, tensor=8), traced, A100, 8.0)
    assert found.sent_s["tensor parallelism"] == pytest.approx(16 * 8 * 4 * message_s)


def test_recomputation_repeats_the_reductions_of_forward(job):
    workload, traced = job
    plain, again = (
        divide_step(over(replace(workload, recompute=case), 8, tensor=8), traced, A100, 8.0).exposed_s
        for case in (Recompute.NONE, Recompute.FULL)
    )
    assert again / plain == pytest.approx(1.5)


def test_a_pipeline_idles_for_its_stages_less_one_by_its_microbatches(job):
    workload, traced = job
    found = divide_step(over(workload, 4, pipeline=4), traced, A100, 8.0)
    assert found.idle_s == pytest.approx(2.0 * 3 / 8)


def test_full_sharding_moves_half_as_much_again_as_sharded_gradients(job):
    workload, traced = job
    full, gradients = (
        divide_step(over(workload, 64, sharding=case), traced, A100, 8.0, **network(8)).sent_s["data parallelism"]
        for case in (Sharding.FULL, Sharding.GRADIENTS)
    )
    assert full / gradients == pytest.approx(1.5)


def test_copies_reduce_their_gradients_once():
    found = divide_step(over(PLAIN, 64), GRADIENTS, A100, 1.0, **network(8))
    ring = make_ring(A100, 64, 8, 200e9)
    assert found.sent_s["data parallelism"] == pytest.approx(ring.all_reduce_s(2e9))


def test_frozen_weights_are_gathered_but_have_no_gradients_to_exchange(job):
    workload, traced = job
    frozen = replace(traced, step=replace(traced.step, trained_bytes=0))

    def sent_s(one, sharding):
        return divide_step(over(workload, 64, sharding=sharding), one, A100, 8.0, **network(8)).sent_s[
            "data parallelism"
        ]

    assert sent_s(frozen, Sharding.GRADIENTS) < 0.5 * sent_s(traced, Sharding.GRADIENTS)
    assert sent_s(frozen, Sharding.FULL) / sent_s(traced, Sharding.FULL) == pytest.approx(2 / 3)


@given(st.floats(1e-3, 1e3), st.sampled_from([Sharding.NONE, Sharding.OPTIMIZER]))
def test_exposed_communication_is_between_none_and_all_of_it(whole_s, sharding):
    found = divide_step(over(PLAIN, 64, sharding=sharding), GRADIENTS, A100, whole_s, **network(8))
    sent_s = found.sent_s["data parallelism"]
    assert 0 < found.exposed_s <= 1.32 * sent_s
    assert whole_s < found.step_s


@given(st.integers(1, 6), st.sampled_from(list(Sharding)))
def test_more_nodes_never_send_faster(doublings, sharding):
    few, many = (
        divide_step(over(PLAIN, 8 * nodes, sharding=sharding), GRADIENTS, A100, 1.0, **network(nodes))
        for nodes in (2**doublings, 2 ** (doublings + 1))
    )
    assert few.sent_s["data parallelism"] <= many.sent_s["data parallelism"]


def test_gpus_that_do_not_divide_are_refused_by_their_number():
    with pytest.raises(InvalidInput, match="6 GPUs cannot be divided into tensor × pipeline = 4 × 1"):
        divide_step(over(PLAIN, 6, tensor=4), GRADIENTS, A100, 1.0)


def test_a_model_without_attention_has_no_layers_to_divide():
    with pytest.raises(InvalidInput, match="leave --tensor-parallel out"):
        divide_step(over(PLAIN, 4, tensor=4), GRADIENTS, A100, 1.0)
    with pytest.raises(InvalidInput, match="leave --pipeline-parallel out"):
        divide_step(over(PLAIN, 4, pipeline=4), GRADIENTS, A100, 1.0)


def test_unmeasured_links_are_reported_with_their_rate():
    inside, across = (
        divide_step(over(PLAIN, 8), GRADIENTS, A100, 1.0),
        divide_step(over(PLAIN, 64), GRADIENTS, A100, 1.0, fabric=job_fabric(over(PLAIN, 64), A100, None, 12.5e9)),
    )
    assert inside.measured
    assert not across.measured
    assert any("assumed 8 nodes of 8 GPUs" in text for text in across.sentences)
    assert any("10 GB/s" in text for text in across.sentences)


def test_an_unknown_network_widens_a_step_and_a_given_one_less():
    unknown, given = (
        divide_step(over(PLAIN, 64), GRADIENTS, A100, 1.0, **network(8, *ends)) for ends in ((25e9, 200e9), ())
    )
    assert unknown.step_s == given.step_s
    assert unknown.fastest_s == given.fastest_s < given.step_s < given.slowest_s < unknown.slowest_s
    assert any("extrapolating: 8 nodes" in text for text in unknown.sentences)


def test_a_step_in_one_node_is_as_sure_as_before():
    step = divide_step(over(PLAIN, 8), GRADIENTS, A100, 1.0)
    assert step.fastest_s == step.step_s == step.slowest_s


def test_full_sharding_leaves_each_gpu_its_part_and_the_layers_in_use(job):
    """Embedding and output layer of 32,000 × 2,048 in two bytes are whole beside two layers of sixteen."""
    workload, traced = job
    peak = peak_memory(traced.step)
    found = divide_memory(peak, over(workload, 64, sharding=Sharding.FULL), traced.step).by_category
    state, weights = StorageCategory.OPTIMIZER_STATE, StorageCategory.PARAMETER
    assert found[state] == pytest.approx(peak.by_category[state] / 64, rel=0.01)
    whole, outside = peak.by_category[weights], 2 * 32000 * 2048 * 2
    gathered = outside + (whole - outside) * 2 / 16
    assert found[weights] == pytest.approx(whole / 64 + gathered * 63 / 64, rel=0.01)


def test_sharded_states_leave_the_weights_whole(job):
    workload, traced = job
    peak = peak_memory(traced.step)
    found = divide_memory(peak, over(workload, 8, sharding=Sharding.OPTIMIZER), traced.step).by_category
    assert peak.by_category[StorageCategory.PARAMETER] == found[StorageCategory.PARAMETER]
    assert found[StorageCategory.OPTIMIZER_STATE] < peak.by_category[StorageCategory.OPTIMIZER_STATE] / 7


def updated_in_temporaries(activations):
    """Return a step that holds 100 of weights, then activations, then 300 of an update's temporaries."""
    ops = tuple(Op("mm", OpKind.GEMM, stage, "float32", 1.0, 1.0, 1.0) for stage in (Stage.FORWARD, Stage.OPTIMIZER))
    kinds = StorageCategory
    events = (
        StorageEvent(0, 0, 100, kinds.PARAMETER), StorageEvent(0, 1, activations, kinds.ACTIVATION),
        StorageEvent(1, 1, -activations, kinds.ACTIVATION), StorageEvent(1, 2, 300, kinds.TEMPORARY),
    )  # fmt: skip
    return OpGraph(ops, events)


@pytest.mark.parametrize(
    ("activations", "sharding", "held"),
    [
        (50, Sharding.NONE, {"parameter": 100, "temporary": 300}),
        (50, Sharding.OPTIMIZER, {"parameter": 100, "temporary": 75}),
        (200, Sharding.OPTIMIZER, {"parameter": 100, "activation": 200}),
    ],
)
def test_the_temporaries_of_an_update_are_shared_out_with_its_state(activations, sharding, held):
    graph = updated_in_temporaries(activations)
    peak = peak_memory(graph)
    assert peak.allocated_bytes == 400
    found = divide_memory(peak, over(PLAIN, 4, sharding=sharding), graph)
    assert held == {kind.value: size for kind, size in found.by_category.items() if size}
    assert sum(held.values()) == found.allocated_bytes


def test_copies_hold_their_gradients_once_more_in_buckets(job):
    workload, traced = job
    peak = peak_memory(traced.step)
    found = divide_memory(peak, over(workload, 8), traced.step)
    assert traced.step.parameter_bytes == found.allocated_bytes - peak.allocated_bytes
    assert traced.step.parameter_bytes == sum(found.by_category.values()) - sum(peak.by_category.values())


def test_a_script_of_several_copies_has_its_buckets_in_its_trace(job):
    _, traced = job
    script = replace(PLAIN, model=ModelSource(ModelKind.COMMAND, "python train.py"))
    peak = peak_memory(traced.step)
    assert peak is divide_memory(peak, over(script, 8), traced.step)


@pytest.mark.parametrize("sharding", [Sharding.OPTIMIZER, Sharding.GRADIENTS])
def test_zero_holds_a_bucket_of_gradients_in_backward_alone(job, sharding):
    """5e8 elements in two bytes."""
    workload, traced = job
    divided = over(workload, 8, sharding=sharding)
    found = [exchange_buffers(divided, traced.step, stage).get(StorageCategory.GRADIENT) for stage in Stage]
    assert found == [None, 10**9, None, None]


def test_frozen_layers_have_only_the_gradients_of_trained_weights(job):
    workload, traced = job
    adapted = replace(traced.step, trained_bytes=16 * 10**6)
    held = exchange_buffers(over(workload, 8, sharding=Sharding.FULL), adapted, Stage.BACKWARD)
    assert int(2 * 10**6 * 7 / 8) == held[StorageCategory.GRADIENT]


def test_bucket_assumptions_are_reported(job):
    workload, traced = job
    box = WhiteBox(host_memory=host_memory)
    alone, copies = (box.estimate(over(workload, gpus), traced, A100).basis.reasons for gpus in (1, 8))
    assert [any("gradient_as_bucket_view" in case for case in told) for told in (alone, copies)] == [False, True]


def test_an_estimate_of_a_divided_model_needs_less_time_and_memory(job):
    workload, traced = job
    box = WhiteBox(host_memory=host_memory)
    copies, divided = (box.estimate(over(workload, 8, tensor=tensor), traced, A100, nodes=1) for tensor in (1, 8))
    assert divided.step_s.point < copies.step_s.point / 2
    assert divided.gpu_memory_bytes.point < copies.gpu_memory_bytes.point / 2
    assert any("is communication" in reason for reason in divided.basis.reasons)


def test_one_forward_pass_goes_through_all_stages(job):
    workload, _ = job
    asked = over(replace(workload, phase=Phase.INFERENCE, accumulation=1), 4, pipeline=4)
    assert divide_step(asked, expand(replace(asked, gpus=1)), A100, 1.0).step_s >= 1.0

"""State-space layers have the weights, products and states of Mamba-2 and Nemotron-H."""

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import Phase, Precision
from leadline.estimators.parallelism.decoder_work import read_work
from tests.graphs.hf_config.conftest import flops

HIDDEN, HEADS, WIDTH, STATE, GROUPS, CHUNK = 128, 8, 32, 64, 2, 32
MAMBA = {"model_type": "mamba2", "hidden_size": HIDDEN, "num_heads": HEADS, "head_dim": WIDTH, "state_size": STATE,
         "n_groups": GROUPS, "chunk_size": CHUNK, "num_hidden_layers": 3, "vocab_size": 500}  # fmt: skip
HYBRID = {"model_type": "nemotron_h", "hidden_size": HIDDEN, "hybrid_override_pattern": "M-M*EM-",
          "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
          "mamba_num_heads": HEADS, "mamba_head_dim": WIDTH, "ssm_state_size": STATE, "n_groups": GROUPS,
          "chunk_size": CHUNK, "n_routed_experts": 4, "moe_intermediate_size": 64,
          "moe_shared_expert_intermediate_size": 96, "vocab_size": 500}  # fmt: skip
SCAN = {"model_type": "mamba", "hidden_size": HIDDEN, "state_size": 16, "num_hidden_layers": 3, "vocab_size": 500}
JAMBA = {"model_type": "jamba", "hidden_size": HIDDEN, "intermediate_size": 256, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 8, "num_experts": 4, "vocab_size": 500}  # fmt: skip
SETTINGS = {"batch": 2, "sequence": 96, "precision": Precision.BF16}
NEMOTRON_H_8B = {"model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "vocab_size": 131072,
                 "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
                 "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
                 "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8}  # fmt: skip


def mixing(step, stage):
    return sum(op.flops * op.count for op in step.ops if op.name == "aten.bmm" and op.stage is stage)


def test_the_scan_multiplies_as_much_as_the_blocks_of_state_space_duality(expanded):
    """Torch counts the four products of each chunk (Dao and Gu 2024, listing 1). A causal kernel halves the second."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    chunks = SETTINGS["batch"] * SETTINGS["sequence"] // CHUNK
    rows = torch.zeros(chunks * HEADS, CHUNK, WIDTH, device="meta")
    inputs, outputs = (torch.zeros(chunks * GROUPS, CHUNK, STATE, device="meta") for _ in range(2))
    spread = torch.zeros(chunks * HEADS, CHUNK, STATE, device="meta")
    counts = []
    within = torch.zeros(chunks * HEADS, CHUNK, CHUNK, device="meta")
    before = torch.zeros(chunks * HEADS, STATE, WIDTH, device="meta")
    for left, right in ((outputs, inputs.mT), (within, rows), (rows.mT, spread), (spread, before)):
        with FlopCounterMode(display=False) as counter:
            torch.bmm(left, right)
        counts.append(counter.get_total_flops())
    within, causal, states, before = counts
    step = expanded(MAMBA, **SETTINGS).step
    assert mixing(step, Stage.FORWARD) == 3 * (within + causal / 2 + states + before)
    again = states + within
    assert mixing(step, Stage.BACKWARD) == 3 * (again + 2 * (within + causal / 2 + states + before))


@pytest.mark.parametrize("config", [MAMBA, HYBRID, {**HYBRID, "moe_latent_size": 48}, SCAN, JAMBA])
def test_weights_are_those_of_the_implementation(expanded, config):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's implementations")
    torch = pytest.importorskip("torch")
    sizes = {name: value for name, value in config.items() if name != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **sizes)
        )
    assert expanded(config, **SETTINGS).step.parameters == sum(item.numel() for item in model.parameters())


def test_nemotron_h_8b_has_its_published_parameters(expanded):
    """The sum of the tensors of nvidia/Nemotron-H-8B-Base-8K on Hugging Face, "8.1B"."""
    job = expanded(NEMOTRON_H_8B, sequence=16, phase=Phase.INFERENCE)
    assert job.step.parameters == 8_100_852_736


def test_training_multiplies_three_times_as_much_by_weights_as_inference(expanded):
    training, inference = (expanded(HYBRID, phase=phase, **SETTINGS).step for phase in Phase)
    weighing = [
        flops(step, OpKind.GEMM) - sum(mixing(step, stage) for stage in Stage) for step in (training, inference)
    ]
    assert weighing[0] == 3 * weighing[1]


def test_the_states_of_a_generation_do_not_grow(expanded):
    """Three mixers of three hold a state in float32 and the last four tokens of the convolution."""
    settings = {**SETTINGS, "phase": Phase.INFERENCE}
    short, long = (expanded(MAMBA, generated=count, **settings).generation.cache_bytes for count in (4, 400))
    convolved = HEADS * WIDTH + 2 * GROUPS * STATE
    assert short == long == 3 * 2 * (4 * HEADS * WIDTH * STATE + 2 * 4 * convolved)
    assert expanded(MAMBA, generated=4, paged=True, **settings).generation.cache_bytes == short


def test_a_hybrid_caches_keys_of_its_attention_only(expanded):
    settings = {**SETTINGS, "phase": Phase.INFERENCE}
    short, long = (expanded(HYBRID, generated=count, **settings).generation for count in (5, 105))
    assert long.cache_bytes - short.cache_bytes == 100 * 2 * 2 * 2 * 32 * 2  # tokens, samples, keys and values
    assert long.last.cache_heads == 2


def test_a_step_of_a_generation_reads_and_writes_the_state(expanded):
    job = expanded(MAMBA, phase=Phase.INFERENCE, generated=3, **SETTINGS)
    updates = [op for op in job.generation.last.ops if op.name == "aten.selective_state_update"]
    state_bytes = 4 * 2 * HEADS * WIDTH * STATE
    assert sum(op.count for op in updates) == 3
    assert all(op.bytes_written >= state_bytes and op.bytes_read >= state_bytes for op in updates)


def test_training_holds_no_states_until_the_backward_pass(expanded):
    """They are computed again there, as mamba-ssm does."""
    step = expanded(MAMBA, **SETTINGS).step
    states, backward = 4 * 2 * 3 * HEADS * WIDTH * STATE, [op.stage for op in step.ops].index(Stage.BACKWARD)
    numbers = {event.storage for event in step.events if event.size_bytes == states}
    changes = [event.size_bytes for event in step.events if event.storage in numbers and event.op <= backward]
    assert len(changes) >= 6
    assert sum(changes) == 0


def test_layers_of_a_hybrid_are_layers_to_divide(expanded):
    assert read_work(expanded(HYBRID, **SETTINGS).step, 1).attention_blocks == 4


def test_the_selective_scan_updates_each_number_of_the_state(expanded):
    """Decay, input, update and output: eight operations each, besides eight for each channel (its skip and gate)."""
    forward = [op for op in expanded(SCAN, **SETTINGS).step.ops if op.name == "aten.selective_scan_fwd"]
    assert sum(op.flops * op.count for op in forward) == 3 * 2 * 96 * (2 * HIDDEN) * (8 * 16 + 8)


def test_the_products_of_a_selective_scan_are_its_four_projections(expanded):
    step = expanded({**SCAN, "num_hidden_layers": 1}, phase=Phase.INFERENCE, **SETTINGS).step
    inner, rank = 2 * HIDDEN, HIDDEN // 16
    weights = 2 * inner * HIDDEN + inner * (rank + 2 * 16) + rank * inner + inner * HIDDEN + HIDDEN * 500
    assert flops(step, OpKind.GEMM) == 2 * 2 * 96 * weights


def test_jamba_attends_in_one_layer_of_eight_and_routes_in_every_second(expanded):
    step = expanded(JAMBA, phase=Phase.INFERENCE, **SETTINGS).step
    counts = [sum(op.count for op in step.ops if op.kind is kind) for kind in (OpKind.ATTENTION, OpKind.SOFTMAX)]
    assert counts == [1, 4]


def test_the_states_of_a_selective_scan_do_not_grow(expanded):
    settings = {**SETTINGS, "phase": Phase.INFERENCE}
    short, long = (expanded(SCAN, generated=count, **settings).generation.cache_bytes for count in (4, 400))
    assert short == long == 3 * 2 * (2 * HIDDEN) * (4 * 16 + 2 * 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**JAMBA, "num_experts_per_tok": 5}, "cannot pass 5 of 4 experts"),
        ({**MAMBA, "num_heads": 4}, "4 heads of 32 are not the expanded width 256"),
        ({**HYBRID, "hybrid_override_pattern": "MXM"}, "'X' is no kind of layer"),
        ({**HYBRID, "num_key_value_heads": 3}, "4 heads cannot share 3"),
    ],
)
def test_an_inconsistent_file_is_refused(expanded, config, message):
    with pytest.raises(InvalidInput, match=message):
        expanded(config)

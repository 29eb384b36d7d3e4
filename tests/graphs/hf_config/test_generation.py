"""A decode step does the arithmetic, moves the bytes and holds the cache of transformers with its own KV cache."""

import inspect
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.core.errors import InvalidInput
from leadline.core.graph import DecodeStep, Generation, OpGraph, OpKind, StorageCategory
from leadline.core.workload import ModelKind, ModelSource, Phase, Precision, Workload
from leadline.estimators.memory.device import peak_memory
from leadline.graphs.hf_config.expand import expand

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
         "vocab_size": 300}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
LATENT = {**SMALL, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "kv_lora_rank": 32,
          "q_lora_rank": 40, "n_shared_experts": 1, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24,
          "first_k_dense_replace": 1, "topk_group": 1, "n_group": 1}  # fmt: skip
GPT = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
BATCH, PROMPT, GENERATED = 2, 24, 9
WINDOWED = [size for window in (8, 28) for size in [{**GROUPED, "sliding_window": window}]]
"""One window that the prompt fills, and one that fills while tokens are generated."""
ROWS = [
    ("llama", GROUPED),
    ("gpt2", GPT),
    *[("mistral", sizes) for sizes in WINDOWED],
    ("gemma2", {**WINDOWED[1], "head_dim": 32}),
    ("gpt_bigcode", GPT),
    ("mixtral", {**GROUPED, "num_local_experts": 4}),
    ("deepseek_v3", LATENT),
    ("bloom", {"n_layer": 2, "hidden_size": 64, "n_head": 4, "vocab_size": 300}),
    ("gptj", {**GPT, "rotary_dim": 8}),
    ("falcon", SMALL),
    ("opt", {"num_hidden_layers": 2, "hidden_size": 64, "ffn_dim": 160, "num_attention_heads": 4, "vocab_size": 300,
             "word_embed_proj_dim": 64}),
]  # fmt: skip
MATRIX = (OpKind.GEMM, OpKind.ATTENTION)
LINEAR = ("aten.mm", "aten.addmm")


@pytest.fixture
def expanded(tmp_path):
    def run(config, **settings):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        defaults = {"batch": BATCH, "sequence": PROMPT, "generated": GENERATED, "precision": Precision.FP32}
        source = ModelSource(ModelKind.HF_CONFIG, str(path))
        return expand(Workload(source, phase=Phase.INFERENCE, **{**defaults, **settings}))

    return run


def flops(graph):
    return sum(op.flops * op.count for op in graph.ops if op.kind in MATRIX)


def moved(graph, *names):
    return sum((op.bytes_read + op.bytes_written) * op.count for op in graph.ops if op.name in names)


def steps_of(job):
    return {step.length: step.graph for steps in job.generation.stretches for step in steps}


def make_model(torch, transformers, family, sizes):
    config = transformers.AutoConfig.for_model(family, **sizes)
    config._experts_implementation = "eager"
    return config.to_dict(), transformers.AutoModelForCausalLM.from_config(config).eval()


def tokens(torch, count):
    return torch.zeros(BATCH, count, dtype=torch.long)


def counter_of_bytes(torch):
    """Return a mode that adds up what each operator reads and writes, tensors of weights and activations alike."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.moved = Counter()

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            answer = operator(*args, **(kwargs or {}))
            flat = torch.utils._pytree.tree_leaves((args, kwargs, answer))
            size = sum(tensor.numel() * tensor.element_size() for tensor in flat if isinstance(tensor, torch.Tensor))
            self.moved[str(operator).rpartition(".")[0]] += size
            return answer

    return Counted()


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="runs Hugging Face's implementations")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="runs Hugging Face's implementations")


CACHE_NAMES = ("cache", "past_key_values")
"""The cache as an argument and in outputs, from transformers 5.24 on and before."""


def cache_after(model, words, cache=None):
    """Return the cache after the words."""
    name = next(name for name in CACHE_NAMES if name in inspect.signature(model.forward).parameters)
    return model(words, use_cache=True, **({} if cache is None else {name: cache}))[name]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes"), ROWS, ids=[f"{row[0]}-{place}" for place, row in enumerate(ROWS)])
def test_decoding_multiplies_as_much_and_caches_as_much_as_the_implementation(
    torch, transformers, expanded, family, sizes
):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config, model = make_model(torch, transformers, family, sizes)
    counted = {}
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):  # the counter knows its products, and no CPU kernel
        cache = cache_after(model, tokens(torch, PROMPT))
        for length in range(PROMPT + 1, PROMPT + GENERATED):
            with FlopCounterMode(display=False) as counter:
                cache = cache_after(model, tokens(torch, 1), cache)
            counted[length] = counter.get_total_flops()
    job = expanded(config)
    assert sum(weight.numel() for weight in model.parameters()) == job.generation.last.parameters
    for length, graph in steps_of(job).items():
        assert pytest.approx(counted[length], rel=0.01) == flops(graph)
    assert pytest.approx(sum(counted.values()), rel=0.01) == job.generation.total(flops)
    cache_bytes = sum(
        tensor.numel() * tensor.element_size() for layer in cache.layers for tensor in (layer.keys, layer.values)
    )
    assert cache_bytes == job.generation.cache_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes"), [ROWS[0], ROWS[1], ROWS[3]], ids=["llama", "gpt2", "mistral"])
def test_decoding_moves_the_bytes_of_the_implementation(torch, transformers, expanded, family, sizes):
    """The products with weights, and the copies by which the cache grows and positions are turned."""
    config, model = make_model(torch, transformers, family, sizes)
    with torch.no_grad():
        cache = cache_after(model, tokens(torch, PROMPT + GENERATED - 2))
        with counter_of_bytes(torch) as counter:
            cache_after(model, tokens(torch, 1), cache)
    graph = expanded(config).generation.last
    for names in (LINEAR, ("aten.cat",)):
        assert pytest.approx(sum(counter.moved[name] for name in names), rel=0.01) == moved(graph, *names)


@pytest.mark.slow
def test_generate_leaves_the_expected_cache(torch, transformers, expanded):
    config, model = make_model(torch, transformers, *ROWS[0])
    settings = {"max_new_tokens": GENERATED, "min_new_tokens": GENERATED, "do_sample": False}
    generated = model.generate(tokens(torch, PROMPT), return_dict_in_generate=True, pad_token_id=0, **settings)
    layers = next(generated[name] for name in CACHE_NAMES if name in generated).layers
    cache_bytes = sum(
        tensor.numel() * tensor.element_size() for layer in layers for tensor in (layer.keys, layer.values)
    )
    assert cache_bytes == expanded(config).generation.cache_bytes


LLAMA = {"model_type": "llama", **GROUPED}


def test_one_token_is_the_prompts_own_pass(expanded):
    job = expanded(LLAMA, generated=1)
    assert job.generation.stretches == ()
    assert job.generation.total(flops) == 0
    assert job.generation.cache_bytes == 2 * 2 * BATCH * PROMPT * 32 * 4


def test_every_further_token_is_a_step_one_longer(expanded):
    job = expanded(LLAMA)
    assert sorted(steps_of(job))[:: len(steps_of(job)) - 1] == [PROMPT + 1, PROMPT + GENERATED - 1]
    assert job.generation.total(lambda _: 1.0) == GENERATED - 1


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_three_steps_of_a_stretch_give_the_sum_of_all(expanded, family):
    """Expanded one by one, over a window that fills on the way."""
    config = {"model_type": family, **WINDOWED[1]}
    one_by_one = [expanded(config, sequence=length - 1, generated=2).generation.last
                  for length in range(PROMPT + 1, PROMPT + GENERATED)]  # fmt: skip
    generation = expanded(config).generation
    for value in (flops, lambda graph: graph.bytes_moved):
        assert pytest.approx(sum(value(graph) for graph in one_by_one), rel=1e-12) == generation.total(value)


@given(st.integers(1, 50), st.integers(1, 400), st.tuples(*[st.floats(-9, 9)] * 3))
def test_costs_quadratic_in_the_length_are_summed_exactly(begin, count, coefficients):
    def value(length):
        return sum(coefficient * length**power for power, coefficient in enumerate(coefficients))

    end = begin + count - 1
    lengths = sorted({begin, (begin + end) // 2, end})
    steps = tuple(DecodeStep(length, OpGraph((), parameters=length)) for length in lengths)
    expected = sum(value(length) for length in range(begin, end + 1))
    total = Generation(begin - 1, count + 1, (steps,), 0).total(lambda graph: value(graph.parameters))
    assert pytest.approx(expected, rel=1e-9, abs=1e-5) == total


def test_the_peak_has_the_whole_cache_and_a_copy_for_the_growing_layer(expanded):
    job = expanded(LLAMA, sequence=2000)
    peak = peak_memory(job.generation.last).by_category[StorageCategory.KV_CACHE]
    one_tensor = job.generation.cache_bytes / 4
    assert job.generation.cache_bytes <= peak <= job.generation.cache_bytes + one_tensor


def test_memory_of_a_decode_step_is_counted_once_and_never_negative(expanded):
    live = Counter()
    for event in expanded({"model_type": "mistral", **WINDOWED[1]}).generation.last.events:
        live[event.storage] += event.size_bytes
        assert live[event.storage] >= 0


def test_the_prompts_pass_scores_its_last_token_alone(expanded):
    scores = [op.dims["m"] for op in expanded(LLAMA).step.ops if op.dims.get("n") == SMALL["vocab_size"]]
    assert scores == [BATCH]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "bert"}, "is an encoder (bert), which cannot generate"),
        ({"model_type": "t5"}, "is an encoder with a decoder (t5)"),
        ({**LLAMA, "architectures": ["LlamaModel"]}, "no head that scores its vocabulary"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "no head that scores its vocabulary"),
    ],
)
def test_a_model_that_cannot_generate_is_refused(expanded, config, says):
    with pytest.raises(InvalidInput, match=r".*") as caught:
        expanded(config)
    assert says in str(caught.value)
    assert "leave --generate out" in str(caught.value)


def test_positions_after_the_learned_ones_are_refused_except_for_the_last_token(expanded):
    gpt2 = {"model_type": "gpt2", **GPT, "n_positions": 32}
    assert max(steps_of(expanded(gpt2, generated=9))) == 32
    with pytest.raises(InvalidInput, match=r"feed 33 tokens.*32 positions"):
        expanded(gpt2, generated=10)


def test_a_default_prompt_leaves_room_for_the_generated_tokens(expanded):
    assert expanded({"model_type": "gpt2", **GPT, "n_positions": 32}, sequence=None).generation.prompt == 24


def cached(graph):
    return peak_memory(graph).by_category[StorageCategory.KV_CACHE]


@pytest.mark.parametrize(("family", "sizes"), [ROWS[0], ROWS[1], ROWS[7]])
def test_a_paged_cache_is_held_in_whole_blocks_and_written_in_place(expanded, family, sizes):
    """24 tokens take two blocks of 16, 32 tokens still do, and 33 take three."""
    config = {"model_type": family, **sizes}
    plain, paged, longer = (
        expanded(config, paged=paged, generated=generated) for paged, generated in ((False, 9), (True, 9), (True, 10))
    )
    one_token = plain.generation.cache_bytes // 32
    assert [32 * one_token, 48 * one_token] == [job.generation.cache_bytes for job in (paged, longer)]
    assert 32 * one_token == cached(paged.generation.last)
    # From a paged cache, latents are attended to themselves instead of being expanded.
    ratio = flops(paged.generation.last) / flops(plain.generation.last)
    assert ratio < 0.5 if family == "deepseek_v3" else ratio == 1
    assert moved(paged.generation.last, "aten.reshape_and_cache") < moved(plain.generation.last, "aten.cat") / 10


def test_generated_tokens_take_no_more_blocks_than_they_need(expanded):
    job = expanded({"model_type": "llama", **GROUPED}, paged=True, generated=200)
    ends = [(step.length, cached(step.graph)) for steps in job.generation.stretches for step in steps]
    each = ends[0][1] // 32
    assert all(-(-length // 16) * 16 * each == cached_tokens for length, cached_tokens in ends)

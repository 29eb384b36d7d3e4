"""A multimodal configuration has the weights and the work of its tower of images, too."""

import pytest

from leadline.core.errors import InvalidInput
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import AttentionImplementation, Phase, Precision
from tests.graphs.hf_config.conftest import flops

CLIP = {"model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
        "num_hidden_layers": 2, "image_size": 56, "patch_size": 14}  # fmt: skip
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}
TEXT = {"model_type": "llama", "hidden_size": 96, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 2, "vocab_size": 300}  # fmt: skip
LLAVA = {"model_type": "llava", "text_config": TEXT, "vision_config": CLIP, "image_seq_length": 16}
GEMMA3 = {"model_type": "gemma3", "vision_config": SIGLIP, "mm_tokens_per_image": 4,
          "text_config": {**TEXT, "model_type": "gemma3_text", "head_dim": 32, "num_key_value_heads": 2}}  # fmt: skip
SETTINGS = {"batch": 2, "sequence": 32, "precision": Precision.FP32}
PAIRS = pytest.mark.parametrize("config", [LLAVA, GEMMA3], ids=["llava", "gemma3"])


def implementation(config):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's implementations")
    sections = {name: value for name, value in config.items() if name != "model_type"}
    made = transformers.CONFIG_MAPPING[config["model_type"]](**sections, image_token_id=299)
    return transformers.AutoModelForImageTextToText.from_config(made).eval()


@PAIRS
def test_weights_and_products_are_those_of_the_implementation(expanded, config):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model = implementation(config)
    tokens = torch.zeros(2, 32, dtype=torch.long)
    count = config.get("image_seq_length", config.get("mm_tokens_per_image"))
    tokens[:, :count] = 299
    images = torch.zeros(2, 3, 56, 56)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=tokens, pixel_values=images)
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    weighing = sum(counted.get(name, 0) for name in ("aten.mm", "aten.addmm", "aten.convolution"))
    step = expanded(config, phase=Phase.INFERENCE, **SETTINGS).step
    assert step.parameters == sum(parameter.numel() for parameter in model.parameters())
    linear = sum(op.flops * op.count for op in step.ops if op.kind is OpKind.GEMM and op.name != "aten.bmm")
    assert linear == weighing


@PAIRS
def test_training_goes_back_through_the_tower(expanded, config):
    step = expanded(config, **SETTINGS).step
    assert flops(step, OpKind.GEMM, stage=Stage.BACKWARD) > 1.9 * flops(step, OpKind.GEMM, stage=Stage.FORWARD)


def test_a_generation_runs_the_tower_once(expanded):
    job = expanded(LLAVA, phase=Phase.INFERENCE, generated=3, **SETTINGS)
    widths = {op.dims["m"] for op in job.generation.last.ops if op.kind is OpKind.GEMM and "n" in op.dims}
    assert widths == {2}
    assert any("one image in each sample, 16 of its tokens" in note for note in job.notes)


def test_the_attention_of_the_option_is_that_of_the_tower_too(expanded):
    eager = expanded(LLAVA, attention=AttentionImplementation.EAGER, **SETTINGS).step
    assert any(spec.shape == (2, 4, 17, 17) for op in eager.ops for spec in op.outputs)


def test_a_tower_that_is_not_expanded_is_named(expanded):
    job = expanded({**LLAVA, "vision_config": {**CLIP, "model_type": "pixtral"}}, **SETTINGS)
    assert any("the vision tower of llava (pixtral) is not counted" in note for note in job.notes)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (LLAVA, {"sequence": 8}, "--seq 8 is shorter than one image, which has 16 tokens"),
        ({**LLAVA, "image_seq_length": 99}, {}, "an image of 17 patches cannot give 99 tokens"),
        ({**LLAVA, "vision_config": {**CLIP, "image_size": 8}}, {}, "8 pixels has no patches of 14"),
    ],
)
def test_an_inconsistent_pair_is_refused(expanded, config, settings, message):
    with pytest.raises(InvalidInput, match=message):
        expanded(config, **{**SETTINGS, **settings})

"""Kernels of serving engines: products by dtype, attention by the cache, and all-reduces of their own."""

import json

import pytest

from leadline.catalog.read import TomlCatalog
from leadline.core.graph import OpKind
from leadline.core.workload import (
    CacheDtype,
    ModelKind,
    ModelSource,
    Phase,
    Precision,
    Quantization,
    Workload,
)
from leadline.estimators.engine_kernels import STEP_S, EngineKernels
from leadline.estimators.parallelism.fabric import make_ring
from leadline.estimators.token_times import least_decode_s
from leadline.graphs.hf_config.expand import expand
from leadline.training.decoder_steps import shipped_step_model

LLAMA_8B = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 128256, "max_position_embeddings": 131072,
            "dtype": "bfloat16"}  # fmt: skip
CURVES = shipped_step_model().curves
A100, H100, B200 = (TomlCatalog().device(name) for name in ("A100 SXM4 80GB", "H100 SXM5 80GB", "B200 SXM"))


@pytest.fixture
def served(tmp_path):
    def run(form=None, *, cache=None, batch=8, prompt=1024, config=LLAMA_8B):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        workload = Workload(ModelSource(ModelKind.HF_CONFIG, str(path)), phase=Phase.INFERENCE, batch=batch,
                            sequence=prompt, generated=4, paged=True, cache_dtype=cache, precision=Precision.BF16,
                            quantization=form)  # fmt: skip
        return workload, expand(workload)

    return run


def decode_s(device, job):
    return EngineKernels(CURVES, device).step_s(job.generation.last)


def test_a_decode_step_takes_longer_than_the_reading_of_weights_and_cache(served):
    for device in (A100, H100, B200):
        for form in (None, *Quantization):
            workload, job = served(form)
            least = least_decode_s(workload, job, device)
            assert STEP_S + least < decode_s(device, job) < STEP_S + 4 * least + 1e-3


@pytest.mark.parametrize(("device", "form", "faster"), [(H100, Quantization.FP8, 1.3), (B200, Quantization.NVFP4, 1.5)])
def test_fewer_bits_are_faster_in_a_long_prompt(served, device, form, faster):
    kernels = EngineKernels(CURVES, device)
    wide, narrow = (kernels.step_s(served(each, prompt=4096)[1].step) for each in (None, form))
    assert faster < wide / narrow < 4


def test_a_gpu_without_the_format_reads_few_bits_and_multiplies_in_sixteen(served):
    """An A100 has no float8: a decode step gains from the smaller weights, and a prompt gains nothing."""
    (_, wide), (_, narrow) = served(), served(Quantization.FP8)
    assert decode_s(A100, narrow) - STEP_S < 0.85 * (decode_s(A100, wide) - STEP_S)
    kernels = EngineKernels(CURVES, A100)
    assert kernels.step_s(narrow.step) > 0.9 * kernels.step_s(wide.step)


def test_a_narrow_cache_is_read_faster(served):
    def attention_s(job):
        last = job.generation.last.ops
        return sum(s for s, op in zip(EngineKernels(CURVES, H100).ops_s(last), last, strict=True)
                   if op.kind is OpKind.ATTENTION)  # fmt: skip

    wide, narrow = (served(cache=each, batch=64, prompt=8192)[1] for each in (None, CacheDtype.FP8))
    assert 1.3 < attention_s(wide) / attention_s(narrow) < 2


def test_all_reduces_of_engines_are_faster_where_nccl_waits():
    ring = make_ring(H100, 8, 1)
    small, large = 16e3, 100e6
    assert ring.one_shot_all_reduce_s(small) < 0.5 * ring.all_reduce_s(small)
    assert ring.one_shot_all_reduce_s(large) == ring.all_reduce_s(large)

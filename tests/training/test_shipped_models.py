"""What Leadline ships is whole, small, quick to load, and chosen by what its card says."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from leadline.app.kernels import kernels_of
from leadline.catalog.read import TomlCatalog
from leadline.core.estimate import Tier
from leadline.core.graph import Op, OpGraph, OpKind, Stage, TensorSpec, TracedJob
from leadline.core.hardware import DeviceKind
from leadline.core.workload import ModelKind, ModelSource, Phase, Precision, Workload
from leadline.estimators.learned.kernels import LearnedKernels
from leadline.estimators.learned.law_kernels import LawKernels
from leadline.estimators.learned.selection import Domain, Group, ranked
from leadline.estimators.learned.step_kernels import BlackBoxKernels, NetworkKernels
from leadline.estimators.learned.swept import SweptKernels
from leadline.estimators.roofline import SpecsKernels
from leadline.graphs.hf_config import expand
from leadline.training.shipped_models import shipped_card, shipped_kernels, shipped_laws

BERT = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512}  # fmt: skip


NAMES = (LawKernels.name, LearnedKernels.name, NetworkKernels.name, BlackBoxKernels.name, SpecsKernels.name)


@pytest.fixture
def job(tmp_path):
    def traced(precision=Precision.FP32, phase=Phase.INFERENCE):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(BERT))
        source = ModelSource(ModelKind.HF_CONFIG, str(path))
        return expand(Workload(source, phase=phase, batch=8, sequence=256, precision=precision))

    return traced


def device(name):
    return TomlCatalog().device(name)


def test_the_card_says_what_was_learned_and_how_far_off_it_was():
    card = shipped_card()
    assert card.schema == "leadline.shipped/1"
    assert {*NAMES, SweptKernels.name} == set(card.learned_from) == {one.estimator for one in card.records}
    for one in card.records:
        assert 0 < one.error < one.within * 1.2
        assert one.steps >= 8
        assert one.devices
        assert one.source


def test_no_group_has_two_records_of_one_estimator():
    keys = [(one.estimator, one.group, one.known) for one in shipped_card().records]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("group", "knowing", "first"),
    [
        (Group(Domain.VISION, "half", "inference"), (LawKernels.name,), LawKernels.name),
        (Group(Domain.VISION, "half", "training"), (), LawKernels.name),
        (Group(Domain.LANGUAGE, "single", "inference"), (), LearnedKernels.name),
        (Group(Domain.LANGUAGE, "half", "training"), (), SpecsKernels.name),
    ],
    ids=str,
)
def test_each_group_has_the_estimator_that_was_least_off(group, knowing, first):
    assert first == ranked(shipped_card().records, group, NAMES, knowing)[0].estimator


def test_a_transformer_in_single_precision_is_priced_by_learned_kernels(job):
    model = kernels_of(device("A100 PCIe 40GB"), job())
    assert (LearnedKernels.name, Tier.LEARNED) == (model.name, model.tier)
    assert "priced by the learned kernels: " in model.reasons[0]
    assert "the maker's figures" in model.reasons[0]
    assert pytest.approx(SpecsKernels(device("A100 PCIe 40GB")).step_s(job().step), rel=1.0) == model.step_s(job().step)


def test_what_no_step_was_measured_of_has_an_assumed_range(job):
    traced = job()
    plain = replace(traced.step, ops=tuple(op for op in traced.step.ops if op.kind.value == "gemm"))
    model = kernels_of(device("A100 PCIe 40GB"), TracedJob(plain))
    assert SpecsKernels.name == model.name
    assert model.reasons[0].startswith(
        "the range is an assumption: no steps were measured like this job (inference in single precision"
    )
    assert SpecsKernels.spread == model.spread_of(plain)


def test_what_is_no_gpu_is_priced_by_its_figures(job):
    cpu = next(one for one in TomlCatalog().devices() if one.kind is DeviceKind.CPU and one.memory_bytes_per_s)
    assert kernels_of(cpu, job()).reasons == ()


def test_an_estimator_that_refuses_is_passed_over_and_the_reason_is_told():
    spec = TensorSpec((8, 64, 32, 32), "float16")
    sizes = {"n": 8, "c": 64, "k": 64, "h": 32, "w": 32, "r": 3, "s": 3, "groups": 1, "stride": 1}
    conv = Op("aten.convolution", OpKind.CONV, Stage.FORWARD, "float16", 6e8, 1e6, 1e6, (spec,), (spec,), sizes)
    lookup = Op("aten.embedding", OpKind.EMBEDDING, Stage.FORWARD, "float16", 0.0, 1e9, 1e9, (spec,), (spec,))
    model = kernels_of(device("RTX 4090"), TracedJob(OpGraph((conv, lookup))))
    assert LearnedKernels.name == model.name
    assert re.match(r"the op law would be \d+% off, but: \d+% of its time is in ", model.reasons[1])
    assert "kernels of which no step was learned (embedding)" in model.reasons[1]


def test_states_are_loaded_once_and_small():
    assert shipped_laws() is shipped_laws()
    assert len(shipped_laws().laws) >= 8
    assert len(shipped_kernels().laws) >= 5


def test_estimates_need_numpy_alone(tmp_path):
    """What a plain install has is enough: nothing else of the sciences is imported."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BERT))
    asked = f"estimate {path} --phase inference --batch 8 --seq 128 --precision fp32 --on T4".split()
    code = (
        "import sys\n"
        "for name in ('scipy', 'sklearn', 'torch', 'onnxruntime', 'lightgbm', 'pandas', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "from leadline.interfaces.cli.main import main\n"
        f"sys.exit(main({asked!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "priced by the learned kernels" in done.stdout

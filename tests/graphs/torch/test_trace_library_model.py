"""Models of timm and torchvision are built by their names, from the libraries of the user's environment."""

import sys
from importlib.util import find_spec

import pytest

from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import OpKind, Stage
from leadline.core.workload import InputShape, ModelKind, ModelSource, Phase, Workload
from leadline.graphs.torch.trace import trace_function
from tests.support.forked_python import run_forked

pytest.importorskip("torch")


def trace(name, batch=2, shape=None, phase=Phase.TRAINING):
    package = name.partition(":")[0]
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    inputs = (InputShape(shape),) if shape else ()
    workload = Workload(ModelSource(ModelKind.FUNCTION, name), batch=batch, inputs=inputs, phase=phase)
    return trace_function(workload, runner=run_forked)


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_a_model_trains_on_images_of_its_own_size(name):
    job = trace(name)
    assert job.step.parameters == 11_689_512  # both libraries' documentation: 11.7 M
    # 1.82 GMAC an image at 224 × 224 pixels, three passes over all but the first layer's input gradient
    assert job.step.flops == pytest.approx(2 * 1.82e9 * 2 * 3, rel=0.05)
    assert {op.stage for op in job.step.ops} == {Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER}
    assert f"the input of {name} is 2x3x224x224" in job.notes


def test_a_given_input_replaces_the_usual_one():
    usual, smaller = (trace("timm:resnet18", shape=shape).step for shape in (None, (2, 3, 112, 112)))
    conv, smaller_conv = (sum(op.flops for op in g.ops if op.kind is OpKind.CONV) for g in (usual, smaller))
    assert smaller_conv == pytest.approx(conv / 4, rel=0.01)


def test_a_segmenter_takes_its_own_larger_images():
    job = trace("torchvision:lraspp_mobilenet_v3_large", phase=Phase.INFERENCE)
    assert "the input of torchvision:lraspp_mobilenet_v3_large is 2x3x520x520" in job.notes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("timm:resnet19", "has no model 'resnet19': see .*resnet18"),
        ("torchvision:resnet19", "has no model 'resnet19': see .*resnet18"),
        ("torchvision:fasterrcnn_resnet50_fpn", "is a detector, .* trace your own script"),
        ("torchvision:r3d_18", "--input 8x3x16x112x112"),
        ("torchvision:quantized_resnet18", "without quantized_"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_with_the_way_on(name, reason):
    with pytest.raises(Untraceable, match=reason):
        trace(name)


def test_without_the_library_the_message_names_each_python_that_was_tried(tmp_path, monkeypatch):
    active = tmp_path / "python"
    active.write_text("#!/bin/sh\nexit 1\n")
    active.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTHONPATH", "")

    def run_without_library(argv, **settings):
        """Run Python without installed packages (-S), as one is that lacks the library."""
        return run_forked([argv[0], "-S", *argv[1:]], **settings)

    workload = Workload(ModelSource(ModelKind.FUNCTION, "timm:resnet18"), batch=2)
    with pytest.raises(InvalidInput, match="pip install timm") as refusal:
        trace_function(workload, runner=run_without_library)
    assert str(active) in str(refusal.value)
    assert sys.executable in str(refusal.value)

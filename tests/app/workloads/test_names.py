"""Models are named: those of libraries, and those of the Hugging Face hub that are on this machine."""

import json

import pytest

from leadline.app.workloads.find import find_subject
from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.workload import Fusion, ModelKind


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the Hugging Face hub, with one model."""
    snapshot = tmp_path / "hub" / "models--some--llama-7b" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    return snapshot / "config.json"


def test_a_model_of_a_library_is_a_function_that_needs_no_input():
    workload = read_workload(["timm:vit_base_patch16_224.augreg_in21k"])
    assert workload.model.kind is ModelKind.FUNCTION
    assert workload.model.library == "timm"
    assert (workload.name, workload.batch, workload.inputs) == ("vit_base_patch16_224.augreg_in21k", 1, ())
    assert "batch" in workload.defaulted
    assert read_workload(["torchvision:resnet50"], WorkloadOptions(batch=128)).batch == 128


def test_a_name_of_no_library_is_no_workload():
    for word in ("keras:resnet50", "timm:", "timm: x"):
        with pytest.raises(InvalidInput, match="timm:NAME"):
            read_workload([word])


def test_a_model_of_the_hub_is_read_from_the_cache_or_a_folder(hub):
    workload = read_workload(["hf:some/llama-7b"])
    assert workload.model.kind is ModelKind.HF_CONFIG
    assert (workload.model.reference, workload.name) == (str(hub), "llama-7b")
    assert read_workload([f"hf:{hub.parent}"]).model.reference == str(hub)


def test_a_model_that_is_not_on_this_machine_is_refused_with_its_download(hub):
    with pytest.raises(InvalidInput, match=r"hf download other/model config\.json"):
        read_workload(["hf:other/model"])
    with pytest.raises(InvalidInput, match="hf:OWNER/MODEL"):
        read_workload(["hf:nothing"])


def test_a_workload_file_names_such_models(hub, tmp_path):
    (tmp_path / "a.toml").write_text('model = "timm:resnet50"\nbatch = 4')
    (tmp_path / "b.toml").write_text('model = "hf:some/llama-7b"')
    assert read_workload([str(tmp_path / "a.toml")]).model.library == "timm"
    assert read_workload([str(tmp_path / "b.toml")]).model.reference == str(hub)


def test_a_server_takes_the_names_but_no_folder_outside_its_own(hub, tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    assert find_subject("torchvision:resnet50", folder) == ("torchvision:resnet50",)
    assert find_subject("hf:some/llama-7b", folder) == (str(hub),)
    with pytest.raises(InvalidInput, match="outside"):
        find_subject(f"hf:{hub.parent}", folder)
    (folder / "job.toml").write_text(f'model = "hf:{hub.parent}"')
    with pytest.raises(InvalidInput, match="outside"):
        find_subject("job.toml", folder)


def test_compile_means_the_compiler_of_each_framework(hub, tmp_path):
    (tmp_path / "step.py").write_text("import jax\ndef build(): ...")
    xla = read_workload([f"{tmp_path / 'step.py'}:build"], WorkloadOptions(compile=True))
    assert (xla.compiled, xla.parallelism.fusion) == (True, None)
    for word in ("timm:resnet50", "hf:some/llama-7b"):
        inductor = read_workload([word], WorkloadOptions(compile=True))
        assert (inductor.compiled, inductor.parallelism.fusion) == (False, Fusion.COMPILER)
    with pytest.raises(InvalidInput, match="--fusion is library"):
        read_workload(["timm:resnet50"], WorkloadOptions(compile=True, fusion="library"))

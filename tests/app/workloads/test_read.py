"""A workload is read from a file, from the command line, or both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.app.workloads.options import WorkloadOptions
from leadline.app.workloads.read import parse_input, read_workload
from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.workload import InputShape, ModelKind, Optimizer, Parallelism, Phase, Precision, Sharding


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}")
    return path


def test_a_command_is_kept_word_by_word():
    workload = read_workload(["python", "train.py", "--name", "two words"])
    assert ModelKind.COMMAND is workload.model.kind
    assert workload.model.argv == ("python", "train.py", "--name", "two words")
    assert workload.name == "train"


def test_the_launcher_sets_the_gpus_unless_the_user_does(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    words = ["torchrun", "--nnodes=2", "--nproc_per_node=4", str(script)]
    assert read_workload(words).gpus == 8
    assert read_workload(words, WorkloadOptions(gpus=2)).gpus == 2
    assert read_workload(["python", str(script)]).gpus == 1
    assert read_workload(["./not-python", "x"]).gpus == 1


def test_config_function_and_onnx_file_are_recognized_by_their_form(tmp_path, config):
    script, net = tmp_path / "net.py", tmp_path / "net.onnx"
    script.write_text("def build(): ...")
    net.write_bytes(b"")
    assert ModelKind.HF_CONFIG is read_workload([str(config)]).model.kind
    assert ModelKind.HF_CONFIG is read_workload([str(tmp_path)]).model.kind
    assert ModelKind.FUNCTION is read_workload([f"{script}:build"]).model.kind
    assert ModelKind.ONNX is read_workload([str(net)]).model.kind


def test_an_hlo_module_is_recognized_by_its_suffix_and_a_dump_by_its_first_word(tmp_path):
    for name in ("step.mlir", "step.stablehlo", "step.hlo", "module_0001.jit_step.after_optimizations.txt"):
        (tmp_path / name).write_text("HloModule jit_step\n")
        assert ModelKind.HLO is read_workload([str(tmp_path / name)]).model.kind
    (tmp_path / "notes.txt").write_text("not a module")
    with pytest.raises(InvalidInput, match="is not a workload"):
        read_workload([str(tmp_path / "notes.txt")])
    with pytest.raises(InvalidInput, match="does not exist"):
        read_workload([str(tmp_path / "gone.mlir")])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import jax\ndef build(): ...", ModelKind.JAX_FUNCTION),
        ("from flax import linen as nn\ndef build(): return nn.Dense(3)", ModelKind.JAX_FUNCTION),
        ("import jax, torch\ndef build(): return jax.jit(print), ()", ModelKind.JAX_FUNCTION),
        ("import jax, torch\ndef build(): return torch.nn.Linear(1, 1)", ModelKind.FUNCTION),
        ("import jax, torch\ndef build(): ...", ModelKind.FUNCTION),
        ("def build():\n    import jax.numpy as jnp\n    return jnp.sin, ()", ModelKind.JAX_FUNCTION),
        ("def build(): ...", ModelKind.FUNCTION),
    ],
)
def test_a_function_is_of_the_framework_that_it_uses(tmp_path, code, kind):
    script = tmp_path / "net.py"
    script.write_text(code)
    assert kind is read_workload([f"{script}:build"]).model.kind


def test_options_cannot_change_a_lowered_module(tmp_path):
    (tmp_path / "step.mlir").write_text("")
    (tmp_path / "net.py").write_text("import jax\ndef build(): ...")
    with pytest.raises(InvalidInput, match="--batch has no effect here: a lowered module has fixed sizes"):
        read_workload([str(tmp_path / "step.mlir")], WorkloadOptions(batch=4))
    with pytest.raises(InvalidInput, match="--precision has no effect here: set it in the JAX function"):
        read_workload([f"{tmp_path / 'net.py'}:build"], WorkloadOptions(precision="bf16"))
    with pytest.raises(InvalidInput, match="--compile is for functions, names and"):
        read_workload([str(tmp_path / "step.mlir")], WorkloadOptions(compile=True))
    assert read_workload([f"{tmp_path / 'net.py'}:build"], WorkloadOptions(compile=True)).compiled


def test_options_left_out_are_named(config):
    workload = read_workload([str(config)], WorkloadOptions(batch=4, precision="bfloat16"))
    assert Precision.BF16 is workload.precision
    assert "batch" not in workload.defaulted
    assert "optimizer" in workload.defaulted


def test_the_command_line_wins_over_the_file(tmp_path, config):
    job = tmp_path / "job.toml"
    (tmp_path / "net.py").write_text("def build(): ...")
    job.write_text('model = "net.py:build"\nbatch = 8\noptimizer = "sgd"\nepochs = 2\ninput = "8x16:int64"\n')
    workload = read_workload([str(job)], WorkloadOptions(batch=2))
    assert workload.batch == 2
    assert Optimizer.SGD is workload.optimizer
    assert workload.name == "job"
    assert (InputShape((2, 16), "int64"),) == workload.inputs
    assert f"{tmp_path / 'net.py'}:build" == workload.model.reference


@pytest.mark.parametrize(
    ("subject", "options", "says"),
    [
        (
            ["python", "train.py"],
            {"precision": "bf16"},
            "--precision has no effect here: a script is traced as it is",
        ),
        (["python", "train.py"], {"input": ["8x8"]}, "--input has no effect here"),
        (["config.json"], {"input": ["8x8"]}, "a config.json takes --batch and --seq"),
        (["net.py:build"], {"seq": 8}, "give the shape of a function's inputs"),
        (["net.onnx"], {"optimizer": "sgd"}, "an ONNX file has no backward"),
        (["python", "train.py"], {"tensor_parallel": 2}, "--tensor-parallel has no effect here"),
        (["net.onnx"], {"sharding": "full"}, "--sharding has no effect here"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path, monkeypatch, config, subject, options, says):
    (tmp_path / "net.py").write_text("def build(): ...")
    (tmp_path / "net.onnx").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=says):
        read_workload(subject, WorkloadOptions(**options))


def test_a_model_is_divided_as_the_options_say(config):
    options = WorkloadOptions(gpus=64, tensor_parallel=8, pipeline_parallel=2, sharding="optimizer")
    divided = read_workload([str(config)], options).parallelism
    assert Parallelism(8, 2, Sharding.OPTIMIZER) == divided
    assert divided.copies(64) == 4


def test_parameters_fill_the_command(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('command = "python fit.py --epochs {epochs} --lr {lr}"\n[parameters]\nepochs = 3\nlr = 0.1\n')
    assert read_workload([str(job)]).model.argv == ("python", "fit.py", "--epochs", "3", "--lr", "0.1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('model = "config.json"\nbatch = [\n', "line 2"),
        ('model = "config.json"\nbatch = "four"\n', "line 2: batch is 'four', but it must be a whole number"),
        ('model = "config.json"\nbacth = 4\n', "line 2: there is no key 'bacth': did you mean 'batch'"),
        ('command = "python a.py {seed}"\n', "seed"),
        ("batch = 4\n", "model"),
        ('model = "a.json"\ncommand = "b"\n', "and not both"),
        ('command = ""\n', "empty"),
    ],
)
def test_a_broken_file_is_reported_with_line_and_reason(tmp_path, config, text, says):
    job = tmp_path / "job.toml"
    job.write_text(text)
    with pytest.raises(InvalidInput, match=r".*") as caught:
        read_workload([str(job)])
    assert says in str(caught.value)
    assert "job.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": -1.0}, "epochs"),
        ({"epochs": 0.0}, "epochs"),
        ({"epochs": float("nan")}, "epochs"),
        ({"batch": 0}, "batch"),
        ({"gpus": -2}, "gpus"),
        ({"phase": "trainig"}, "training"),
        ({"precision": "fp17"}, "fp16"),
        ({"optimizer": "adamz"}, "adam"),
        ({"epochs": 1.0, "steps": 5}, "leave one out"),
        ({"bytes_per_sample": "many"}, "many"),
        ({"sharding": "zero9"}, "--sharding takes none, optimizer, gradients, full"),
        ({"tensor_parallel": 0}, "--tensor-parallel is 0"),
        ({"tensor_parallel": 4, "gpus": 6}, "6 GPUs cannot be divided into tensor × pipeline = 4 × 1"),
        ({"sharding": "full", "phase": "inference"}, "leave it out of inference"),
        ({"generate": 0, "phase": "inference"}, "--generate is 0, but it must be at least 1"),
        ({"generate": -3, "phase": "inference"}, "--generate is -3, but it must be at least 1"),
        ({"generate": 64}, "--generate is for inference: add --phase inference"),
    ],
)
def test_an_option_out_of_range_is_named(config, options, says):
    with pytest.raises(InvalidInput, match=says):
        read_workload([str(config)], WorkloadOptions(**options))


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        ([], "no workload"),
        (["absent.json"], "does not exist"),
        (["absent.py:build"], "does not exist"),
        (["absent.toml"], "No such file"),
        (["train.py"], "-- python train.py"),
        (["resnet50"], "is not a workload"),
    ],
)
def test_an_invalid_subject_is_refused_with_an_example(tmp_path, monkeypatch, subject, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=says):
        read_workload(subject)


def test_phase_defaults_to_training(config):
    assert Phase.TRAINING is read_workload([str(config)]).phase


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=5), st.sampled_from(["float32", "int64", "bfloat16"]))
def test_a_shape_survives_being_written_and_read(shape, dtype):
    assert InputShape(tuple(shape), dtype) == parse_input(f"{'x'.join(map(str, shape))}:{dtype}")


def test_a_shape_with_an_unknown_dtype_names_a_close_one():
    with pytest.raises(UnknownName, match="float32"):
        parse_input("8x8:float23")


def test_the_batch_is_the_leading_dimension_of_the_inputs(tmp_path):
    script = tmp_path / "net.py"
    script.write_text("def build(): ...")
    shapes = WorkloadOptions(input=["64x3x8x8", "64x10"])
    assert read_workload([f"{script}:build"], shapes).batch == 64


def test_only_the_configuration_of_a_language_model_generates(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"only the config\.json of a language model"):
        read_workload([str(path)], WorkloadOptions(phase="inference", generate=8))


def test_a_file_names_prompt_and_generated_tokens(tmp_path, config):
    job = tmp_path / "job.toml"
    job.write_text(f'model = "{config}"\nphase = "inference"\nseq = 128\ngenerate = 32\n')
    workload = read_workload([str(job)])
    assert (workload.sequence, workload.generated) == (128, 32)

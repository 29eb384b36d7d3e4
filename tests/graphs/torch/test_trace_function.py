import runpy
from pathlib import Path

import pytest

from leadline.catalog.probes.overheads import processor_figures
from leadline.core.errors import InvalidInput, Untraceable
from leadline.core.graph import OpKind, Stage, StorageCategory, TracedJob
from leadline.core.workload import (
    Fusion,
    InputShape,
    ModelKind,
    ModelSource,
    Optimizer,
    Parallelism,
    Phase,
    Precision,
    Workload,
)
from leadline.estimators.memory.heap import live_peak_bytes
from leadline.estimators.memory.onednn import Processor
from leadline.estimators.memory.workspaces import attention_scratch_bytes
from leadline.graphs.torch.trace import trace_function
from tests.support.forked_python import run_forked

NET = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    def forward(self, x):
        return self.block(self.embed(x))

class SharedHeads(nn.Module):
    # eight heads of queries, two of keys and values
    def __init__(self):
        super().__init__()
        self.query, self.both = nn.Linear(64, 64), nn.Linear(64, 32)
    def forward(self, x):
        query = self.query(x).view(*x.shape[:2], 8, 8).transpose(1, 2)
        key, value = self.both(x).view(*x.shape[:2], 4, 8).transpose(1, 2).chunk(2, 1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 64, 32))
    def forward(self, x):
        ends = torch.full((4,), len(x) // 4, dtype=torch.int32, device=x.device).cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(x, self.weight, offs=ends)

def smooth():
    return nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.Mish())

def pixels():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))

def channels_last():
    return pixels().to(memory_format=torch.channels_last)

def recurrent():
    return nn.LSTM(16, 32, 2, batch_first=True)

class Reader(nn.Module):
    # the next token of each, by the weights of the embedding where they are shared
    def __init__(self, layers, tied, **knobs):
        super().__init__()
        self.embed, self.layers = nn.Embedding(2000, 48), layers
        self.head = nn.Linear(48, 2000, bias=False)
        if tied:
            self.head.weight = self.embed.weight
    def forward(self, x):
        hidden = self.embed(x)
        hidden = self.layers(hidden)[0] if self.layers else hidden
        if not self.training:
            return self.head(hidden)
        from types import SimpleNamespace
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), x.flatten()))

def tied():
    return Reader(None, tied=True)

def untied():
    return Reader(None, tied=False)

def reading():
    return Reader(nn.LSTM(48, 48, 2, batch_first=True), tied=False)

def reading_both_ways():
    return Reader(nn.LSTM(48, 24, 1, batch_first=True, bidirectional=True), tied=False)

class Chosen(nn.Linear):
    def forward(self, x):
        return super().forward(x[x.sum(1) > 0])

def chosen():
    return Chosen(8, 8)

class Fixed(nn.Linear):
    def forward(self, x):
        return super().forward(x[torch.tensor([True, False, True]).nonzero()[:, 0]])

def fixed():
    return Fixed(8, 8)

def broken():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 6))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(NET)
    return path


def trace(model: Path, name: str, shape: InputShape, device_type: str = "cuda", **knobs: object) -> TracedJob:
    source = ModelSource(ModelKind.FUNCTION, f"{model}:{name}")
    workload = Workload(source, inputs=(shape,), optimizer=Optimizer.ADAM, **knobs)  # type: ignore[arg-type]
    return trace_function(workload, runner=run_forked, device_type=device_type)


def test_a_convolution_carries_the_sizes_that_decide_its_speed(model: Path) -> None:
    step = trace(model, "pixels", InputShape((4, 3, 32, 32))).step
    conv = next(op for op in step.ops if op.name == "aten.convolution")
    expected = {"n": 4, "c": 3, "k": 8, "h": 16, "w": 16, "r": 3, "s": 3, "groups": 1, "stride": 2, "dilation": 1}
    assert expected == conv.dims
    assert conv.flops == 2 * 4 * 8 * 16 * 16 * 3 * 9
    assert step.parameters == (3 * 8 * 9 + 8 + 2048 * 10 + 10)
    assert {Stage.FORWARD, Stage.BACKWARD, Stage.OPTIMIZER} == {op.stage for op in step.ops}


def test_a_channels_last_convolution_is_marked_in_both_directions(model: Path) -> None:
    shape = InputShape((4, 3, 32, 32))
    plain, last = ([op for op in trace(model, name, shape).step.ops if op.kind is OpKind.CONV]
                   for name in ("pixels", "channels_last"))  # fmt: skip
    assert [{**op.dims, "channels_last": 1} for op in plain] == [op.dims for op in last]
    assert {Stage.FORWARD, Stage.BACKWARD} == {op.stage for op in last}


def test_a_compiled_model_does_not_hold_what_backward_recomputes(model: Path) -> None:
    shape = InputShape((64, 8))
    eager = trace(model, "smooth", shape)
    compiled = trace(model, "smooth", shape, parallelism=Parallelism(fusion=Fusion.COMPILER))
    assert compiled.step.ops == eager.step.ops
    assert live_peak_bytes(compiled.step) < live_peak_bytes(eager.step)


def test_a_step_frees_all_memory_but_weights_and_state(model: Path) -> None:
    step = trace(model, "pixels", InputShape((4, 3, 32, 32))).step
    assert 3 * step.parameter_bytes <= sum(e.size_bytes for e in step.events) <= 4 * step.parameter_bytes + 1024 + 49152
    state_bytes = sum(e.size_bytes for e in step.events if e.category is StorageCategory.OPTIMIZER_STATE and e.op == 0)
    assert 2 * step.parameter_bytes == state_bytes


def scratch(step):
    """Return what the backward passes of attention take on an NVIDIA GPU beside the tensors that were traced."""
    backward = (op for op in step.ops if op.kind is OpKind.ATTENTION and op.stage is Stage.BACKWARD)
    return [attention_scratch_bytes(op, "nvidia") for op in backward]


def test_half_precision_attention_is_flash_on_the_gpu_and_float32_is_not(model: Path) -> None:
    shape = InputShape((2, 16), "int64")
    half = trace(model, "Tokens", shape, precision=Precision.AMP_BF16).step
    full = trace(model, "Tokens", shape).step
    assert "aten._scaled_dot_product_flash_attention" in {op.name for op in half.ops}
    assert "aten._scaled_dot_product_efficient_attention" in {op.name for op in full.ops}
    attention = next(op for op in half.ops if op.kind is OpKind.ATTENTION)
    assert attention.dims == {"b": 2, "h": 4, "q": 16, "kv": 16, "d": 16}
    assert attention.dtype == "bfloat16"
    assert scratch(half) == [4 * 2 * 4 * 128 * (1 + 32)]
    assert scratch(full) == [4 * 2 * 4 * (16 + 64 * 64 + 4)]


def test_a_recurrent_layer_is_one_op_each_way(model: Path) -> None:
    step = trace(model, "recurrent", InputShape((4, 10, 16)), "cpu").step
    recurrent = [op for op in step.ops if op.kind is OpKind.RNN]
    assert [op.name for op in recurrent] == ["aten.lstm", "aten.lstm_backward"]
    assert recurrent[0].dims == {"batch": 4, "seq": 10, "input": 16, "hidden": 32, "layers": 2, "directions": 1}
    assert recurrent[0].flops == 2 * 40 * 4 * 32 * ((16 + 32) + (32 + 32))


def really_live(model: Path, name: str, shape: tuple[int, ...], *, training: bool, amp: bool = False) -> int:
    """Return the peak of what parameters hold and a real step on one thread adds, by the profiler's memory events."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    net = runpy.run_path(str(model))[name]().train(training)

    def step() -> None:
        with torch.autocast("cpu", enabled=amp), torch.set_grad_enabled(training):
            out = net(torch.randint(0, 1000, shape))
        if training:
            out.loss.backward()
            net.zero_grad()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    torch.set_num_threads(threads)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak + sum(parameter.numel() * parameter.element_size() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("name", "phase", "precision"),
    [
        ("tied", Phase.TRAINING, Precision.FP32),
        ("untied", Phase.TRAINING, Precision.FP32),
        ("reading", Phase.TRAINING, Precision.FP32),
        ("reading", Phase.TRAINING, Precision.AMP_BF16),
        ("reading", Phase.INFERENCE, Precision.FP32),
        ("reading_both_ways", Phase.TRAINING, Precision.FP32),
    ],
)
def test_a_step_of_a_language_model_holds_what_a_real_one_does(
    model: Path, name: str, phase: Phase, precision: Precision
) -> None:
    """A shared weight has its two gradients and their sum at once; each layer of an LSTM has oneDNN's workspace."""
    if precision is Precision.AMP_BF16 and Processor.of(processor_figures()).channel_block < 16:
        pytest.skip("without AVX-512 PyTorch runs no LSTM in bfloat16")
    shape = (4, 8) if name in ("tied", "untied") else (16, 64)
    source = ModelSource(ModelKind.FUNCTION, f"{model}:{name}")
    workload = Workload(
        source, phase, inputs=(InputShape(shape, "int64"),), optimizer=Optimizer.SGD, precision=precision
    )
    step = trace_function(workload, runner=run_forked, device_type="cpu").step
    amp = precision is Precision.AMP_BF16
    really = really_live(model, name, shape, training=phase is Phase.TRAINING, amp=amp)
    assert really == pytest.approx(live_peak_bytes(step, Processor(threads=1)), rel=0.03)


def test_tied_weights_are_made_separately_and_count_in_the_peak_of_building(model: Path) -> None:
    jobs = [trace(model, name, InputShape((4, 8), "int64"), "cpu") for name in ("tied", "untied")]
    assert all((job.loop.built_bytes or 0) >= 2 * 2000 * 48 * 4 for job in jobs)
    assert trace(model, "tied", InputShape((4, 8), "int64")).loop.built_bytes is None


def test_a_size_that_depends_on_data_has_a_note_and_a_known_one_has_none(model: Path) -> None:
    chosen, fixed = (trace(model, name, InputShape((3, 8)), "cpu") for name in ("chosen", "fixed"))
    assert ["depends on the data: all was assumed" in note for note in chosen.notes] == [True]
    assert fixed.notes == ()
    product = next(op for op in fixed.step.ops if op.kind is OpKind.GEMM)
    assert product.flops == 2 * 2 * 8 * 8


def test_inference_has_a_forward_pass_only(model: Path) -> None:
    step = trace(model, "pixels", InputShape((4, 3, 32, 32)), phase=Phase.INFERENCE).step
    assert {Stage.FORWARD} == {op.stage for op in step.ops}


def test_a_model_that_cannot_run_is_untraceable(model: Path) -> None:
    with pytest.raises(Untraceable, match="same reduction dim"):
        trace(model, "broken", InputShape((2, 3)))


def test_a_model_function_that_does_not_exist_is_named(model: Path) -> None:
    with pytest.raises(Untraceable, match="defines no 'absent'"):
        trace(model, "absent", InputShape((2, 3)))
    with pytest.raises(InvalidInput, match="names no model function"):
        trace(model.with_name("missing.py"), "build", InputShape((2, 3)))


def test_grouped_heads_run_flash_attention_in_half_precision_and_plain_math_in_float32(model: Path) -> None:
    """The memory-efficient kernel takes no grouped heads, so that float32 holds all scores."""
    shape = InputShape((2, 16, 64))
    half = trace(model, "SharedHeads", shape, precision=Precision.BF16).step
    flash = next(op for op in half.ops if op.kind is OpKind.ATTENTION)
    assert [spec.shape for spec in flash.inputs[:2]] == [(2, 8, 16, 8), (2, 2, 16, 8)]
    assert scratch(half) == [4 * 2 * 8 * 128 * (1 + 32) + 2 * 2 * 2 * 8 * 16 * 8]
    full = trace(model, "SharedHeads", shape, precision=Precision.FP32).step
    assert not any(op.kind is OpKind.ATTENTION for op in full.ops)
    assert (16, 16, 16) in {spec.shape for op in full.ops if op.name == "aten.bmm" for spec in op.outputs}


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_the_product_of_experts_counts_each_row_once(model: Path, precision: Precision) -> None:
    pytest.importorskip("torch", minversion="2.8", reason="grouped products are new")
    step = trace(model, "Experts", InputShape((32, 64)), precision=precision).step
    forward = next(op for op in step.ops if op.name == "aten._grouped_mm" and op.stage is Stage.FORWARD)
    assert forward.dims == {"b": 4, "m": 8, "n": 32, "k": 64}
    backward = [op for op in step.ops if op.name == "aten._grouped_mm" and op.stage is Stage.BACKWARD]
    assert [2 * 32 * 64 * 32] * len(backward) == [op.flops for op in backward]
    assert forward.flops == 2 * 32 * 64 * 32


def test_the_gradient_of_a_smooth_activation_is_one_kernel(model: Path) -> None:
    step = trace(model, "smooth", InputShape((4, 8)), precision=Precision.FP32).step
    backward = {op.name for op in step.ops if op.stage is Stage.BACKWARD and op.kind is OpKind.ELEMENTWISE}
    assert {"aten.silu_backward", "aten.mish_backward"} <= backward
    assert not backward & {"aten.sigmoid", "aten.tanh", "aten.rsub"}

"""A convolution's copies are held against the CPU profiler's memory events of the same convolution."""

from dataclasses import replace

import pytest

from leadline.catalog.probes.overheads import processor_figures
from leadline.core.graph import Op, OpKind, Stage, TensorSpec
from leadline.estimators.memory.onednn import ELEMENT_BYTES, Processor, operand_copies

torch = pytest.importorskip("torch")
HERE = replace(Processor.of(processor_figures()), threads=1)
BATCH = 64 if HERE.tiles else 8  # beside which the scratch of tiles is small
CASES = {
    "many channels": ((64, 64, 3), {}),
    "channels that are padded": ((12, 20, 3), {}),
    "colour in": ((3, 32, 3), {}),
    "one channel in": ((1, 64, 3), {}),
    "stride": ((32, 64, 3), {"stride": 2}),
    "pointwise": ((16, 32, 1), {}),
    "depthwise": ((32, 32, 3), {"groups": 32}),
    "transposed": ((32, 64, 4), {"stride": 2, "transposed": True}),
    "pointwise in a large batch": ((16, 32, 1), {"batch": 16}),
    "one small image": ((16, 32, 3), {"batch": 1}),
    "wide depthwise": ((32, 32, 7), {"groups": 32}),
    "channels last": ((32, 64, 3), {"last": True}),
    "channels last, wide depthwise": ((32, 32, 7), {"groups": 32, "last": True}),
    "filters that exceed the image": ((64, 64, 3), {"image": 2}),
    "filters that exceed the image, in groups": ((64, 128, 7), {"image": 4, "groups": 4}),
    "channels last, filters that exceed the image": ((64, 64, 5), {"image": 4, "last": True}),
    "bfloat16": ((64, 64, 3), {"dtype": torch.bfloat16, "batch": BATCH}),
    "bfloat16, stride": ((64, 128, 3), {"stride": 2, "dtype": torch.bfloat16, "batch": BATCH}),
    "bfloat16, depthwise": ((32, 32, 3), {"groups": 32, "dtype": torch.bfloat16}),
}


def spec(tensor):
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def highest(moves):
    level = peak = 0
    for size in moves:
        level += size
        peak = max(peak, level)
    return peak


def really(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return highest([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]), result


def foretold(op, processor=HERE):
    results = [ELEMENT_BYTES[output.dtype] * torch.Size(output.shape).numel() for output in op.outputs]
    own = [(float(place + 1), size) for place, size in enumerate(results)]
    moves = [(place, size) for place, _, size in operand_copies(op, processor)]
    return highest([size for _, size in sorted([*own, *moves], key=lambda output: output[0])])


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("case", CASES)
def test_the_peak_of_a_real_convolution_is_predicted(case):
    (channels_in, channels_out, taps), options = CASES[case]
    if "exceed" in case and HERE.channel_block > 8:
        pytest.skip("AVX-512 has kernels of its own for them")
    stride, groups, transposed = (options.get(name, 1) for name in ("stride", "groups", "transposed"))
    if "bfloat16" in case and HERE.channel_block < 16:
        pytest.skip("without AVX-512 PyTorch hands no bfloat16 to oneDNN")
    image = options.get("image", 16)
    dtype, pad = options.get("dtype", torch.float32), taps // 2 if taps in (3, 5, 7) else int(taps > 1)
    make = torch.nn.ConvTranspose2d if transposed is True else torch.nn.Conv2d
    module = make(channels_in, channels_out, taps, stride, pad, groups=groups, bias=False, dtype=dtype)
    source, filters = (
        torch.randn(options.get("batch", 8), channels_in, image, image, dtype=dtype),
        module.weight.detach(),
    )
    dims = {"stride": stride, "groups": groups, **({"transposed": 1} if transposed is True else {})}
    if options.get("last"):
        source, dims["channels_last"] = source.to(memory_format=torch.channels_last), 1
    with torch.no_grad():
        module(source)
        forward_bytes, result = really(lambda: module(source))
        arguments = (torch.ones_like(result), source, filters, None, [stride] * 2, [pad] * 2, [1, 1],
                     transposed is True, [0, 0], groups, [True, True, False])  # fmt: skip
        backward_bytes, _ = really(lambda: torch.ops.aten.convolution_backward(*arguments))
    inputs = (spec(source), spec(filters))
    named = spec(source).dtype
    forward = Op("aten.convolution", OpKind.CONV, Stage.FORWARD, named, 1, 1, 1, inputs, (spec(result),), dims)
    backward = Op(
        "aten.convolution_backward", OpKind.CONV, Stage.BACKWARD, named, 1, 1, 1, (spec(result), *inputs), inputs,
        {**dims, "gradients": 2},
    )  # fmt: skip
    assert forward_bytes == pytest.approx(foretold(forward), rel=0.08)
    widths = [HERE, replace(HERE, channel_block=8)]  # AVX-512 takes AVX2's kernels where its caches make them faster
    assert any(backward_bytes == pytest.approx(foretold(backward, width), rel=0.08) for width in widths)


def test_registers_say_how_many_channels_lie_together():
    assert Processor(16, 2) == Processor.of({})
    assert Processor(8, 1) == Processor.of({"vector_bytes": 32.0, "threads": 1.0})

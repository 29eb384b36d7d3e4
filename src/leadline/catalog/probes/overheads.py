"""Overheads of a framework: dispatch, autograd, optimizer, fresh memory, data loading."""

import mmap
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import fmean, median

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leadline.catalog.probes.stopwatch import Stopwatch

SMALL = 8  # side of tensors so small that only overhead remains


def processor_figures() -> dict[str, float]:
    """Return PyTorch's thread count, the bytes of an x86 vector register, and 1 as ``matrix_tiles`` with AMX."""
    bytes_ = {"AVX512": 64.0, "AVX2": 32.0}.get(torch.backends.cpu.get_cpu_capability(), 0.0)
    tiles = float(getattr(torch.cpu, "get_capabilities", dict[str, bool])().get("amx_bf16", False))
    figures = {"threads": float(torch.get_num_threads()), "vector_bytes": bytes_, "matrix_tiles": tiles}
    return {name: figure for name, figure in figures.items() if figure}


def overhead_figures(watch: Stopwatch) -> dict[str, float]:
    """Return seconds per operator of a step with almost no arithmetic, by stage, and of a bare call.

    Operators count as in a traced graph: as the dispatcher sees them, without views. ``launch_step_s`` is what a
    training step takes beside its operators: to start the backward pass, the optimizer, and to reset the gradients.
    """
    device = watch.device_type
    deep, shallow = (_small_step(watch, layers) for layers in (20, 1))
    each_s = {stage: (deep[stage][0] - shallow[stage][0]) / (deep[stage][1] - shallow[stage][1]) for stage in deep}
    fixed_s = (shallow[stage][0] - each_s[stage] * shallow[stage][1] for stage in TRAINING_STAGES)
    a, b = torch.randn(SMALL, device=device), torch.randn(SMALL, device=device)
    with torch.no_grad():
        call_s = _host_s(watch, lambda: torch.add(a, b))
        view_s = _host_s(watch, lambda: a.view(2, SMALL // 2))
    launches = {f"launch_{stage}_s": max(seconds, 0.0) for stage, seconds in each_s.items()}
    return {
        "call_s": call_s,
        "view_s": view_s,
        **launches,
        "launch_s": launches["launch_forward_s"],
        "launch_step_s": max(sum(fixed_s), 0.0),
    }


TRAINING_STAGES = ("forward", "backward", "optimizer")


def _small_step(watch: Stopwatch, layers: int) -> dict[str, tuple[float, int]]:
    """Return the seconds and the operators of each stage of a step of small layers."""
    device = watch.device_type
    model = torch.nn.Sequential(
        *[layer for _ in range(layers) for layer in (torch.nn.Linear(SMALL, SMALL), torch.nn.ReLU())]
    )
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(SMALL, SMALL, device=device)

    def forward() -> torch.Tensor:
        return model(x).sum()

    def backward() -> None:
        optimizer.zero_grad()
        forward().backward()

    backward()
    forward_ops, both_ops, optimizer_ops = (count_operators(call) for call in (forward, backward, optimizer.step))
    forward_s, both_s, optimizer_s = (_host_s(watch, call) for call in (forward, backward, optimizer.step))
    with torch.no_grad():
        inference_s = _host_s(watch, forward)
    return {
        "inference": (inference_s, forward_ops),
        "forward": (forward_s, forward_ops),
        "backward": (both_s - forward_s, both_ops - forward_ops),
        "optimizer": (optimizer_s, optimizer_ops),
    }


def _host_s(watch: Stopwatch, call: Callable[[], object]) -> float:
    """Return the lower quartile of a call's wall seconds; the device is synchronized after each block."""
    blocks = []
    for _ in range(7):
        watch.synchronize()
        begun = time.perf_counter()
        for _ in range(10):
            call()
        watch.synchronize()
        blocks.append((time.perf_counter() - begun) / 10)
    return sorted(blocks)[len(blocks) // 4]


class _Counter(TorchDispatchMode):  # type: ignore[misc]
    """Counts operators that are neither views nor bookkeeping."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 - torch's signature
        if not func.is_view and func.namespace == "aten":
            self.count += 1
        return func(*args, **(kwargs or {}))


def count_operators(call: Callable[[], object]) -> int:
    """Return the number of operators of a call, as the dispatcher sees them, without views."""
    with _Counter() as counter:
        call()
    return max(int(counter.count), 1)


def product_flops_per_s(watch: Stopwatch) -> float:
    """Return the rate of one large product in single precision."""
    side = 2048
    a, b = (torch.randn(side, side, device=watch.device_type) for _ in range(2))
    return 2.0 * side**3 / watch.call_s(lambda: torch.mm(a, b))


def memory_figures(watch: Stopwatch) -> dict[str, float]:
    """Return copy bandwidth and, on a CPU, the seconds per byte of freshly mapped memory."""
    device, size = watch.device_type, 2**24
    source, target = torch.randn(size, device=device), torch.empty(size, device=device)
    figures = {"copy_bytes_per_s": 8.0 * size / watch.call_s(lambda: target.copy_(source))}
    if device == "cpu":
        figures["fresh_s_per_byte"] = _fresh_s_per_byte(watch)
    else:
        host = torch.empty(size, pin_memory=True)
        figures["pinned_copy_bytes_per_s"] = 4.0 * size / watch.call_s(lambda: target.copy_(host, non_blocking=True))
    return figures


def _fresh_s_per_byte(watch: Stopwatch) -> float:
    """Return the cost of a new page, the mean of pages written by all threads and by one, as in small kernels."""
    # Mapped here rather than by the C library, which may keep freed blocks and then takes no new page.
    source, threads, costs = torch.randn(2**19), torch.get_num_threads(), []
    size = 4 * source.numel()

    def write(pages: mmap.mmap) -> None:
        torch.clamp_min(source, 0, out=torch.frombuffer(pages, dtype=torch.float32))

    def write_new() -> None:
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) as pages:
            write(pages)

    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) as kept:
        for count in (threads, 1):
            torch.set_num_threads(count)
            costs.append(max(watch.call_s(write_new) - watch.call_s(partial(write, kept)), 0.0) / size)
    torch.set_num_threads(threads)
    return fmean(costs)


def loader_figures(*, samples: int = 512, batch: int = 32) -> dict[str, float]:
    """Return DataLoader's seconds without workers, per sample (indexing, collate) and per batch.

    With a worker, each batch goes from process to process: the processor seconds that it takes the worker to send it
    (``loader_send_s``) and the training process to receive it (``loader_receive_s``).
    """
    data = torch.utils.data.TensorDataset(torch.randn(samples, 256), torch.zeros(samples, dtype=torch.long))

    def epoch_s(size: int) -> float:
        begun = time.perf_counter()
        for _ in torch.utils.data.DataLoader(data, batch_size=size):
            pass
        return time.perf_counter() - begun

    epoch_s(batch)
    few, many = min(epoch_s(batch) for _ in range(3)), min(epoch_s(1) for _ in range(3))
    per_batch = max(many - few, 0.0) / (samples - samples / batch)
    per_sample = max(few - per_batch * samples / batch, 0.0) / samples
    send_s, receive_s = _transfer_s(data)
    return {
        "loader_batch_s": per_batch,
        "loader_sample_s": per_sample,
        "loader_send_s": max(send_s - per_batch - per_sample, 0.0),
        "loader_receive_s": receive_s,
    }


def _transfer_s(data: torch.utils.data.Dataset[object]) -> tuple[float, float]:
    """Return the processor seconds of a batch in a worker of DataLoader, and in the process that trains."""

    def usage() -> tuple[float, float]:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return ended.ru_utime + ended.ru_stime, time.process_time()

    def epoch(count: int) -> tuple[float, float]:
        begun = usage()
        part = torch.utils.data.Subset(data, range(count))
        for _ in torch.utils.data.DataLoader(part, batch_size=1, num_workers=1):
            pass
        return tuple(after - before for before, after in zip(begun, usage(), strict=True))  # type: ignore[return-value]

    # The difference of two lengths leaves the start and the end of the worker out.
    few, many = 32, 288
    rounds = [(epoch(few), epoch(many)) for _ in range(3)]
    send, receive = (median(long[side] - short[side] for short, long in rounds) / (many - few) for side in (0, 1))
    return max(send, 0.0), max(receive, 0.0)


@contextmanager
def warm_memory() -> Iterator[None]:
    """Keep freed memory in the process, so that kernel times contain no page faults.

    glibc returns large freed blocks to the kernel (``man 3 mallopt``). That cost is measured separately, and the
    estimate charges it to the blocks concerned.
    """
    import ctypes  # noqa: PLC0415 - only a calibration needs the C library

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, mmap_threshold = -1, -3
    if mallopt is not None:
        mallopt(mmap_threshold, 2**30)
        mallopt(trim_threshold, 2**31 - 1)
    try:
        yield
    finally:
        if mallopt is not None:
            mallopt(mmap_threshold, 128 * 1024)
            mallopt(trim_threshold, 128 * 1024)

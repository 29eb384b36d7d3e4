"""Overheads of a framework: dispatch, autograd, optimizer, fresh memory, data loading, start-up."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leadline.catalog.probes.stopwatch import Stopwatch
from leadline.core.processes import ProcessRunner

SMALL = 8  # side of tensors so small that only overhead remains


def processor_figures() -> dict[str, float]:
    """Return PyTorch's thread count, the bytes of an x86 vector register, and 1 as ``matrix_tiles`` with AMX."""
    bytes_ = {"AVX512": 64.0, "AVX2": 32.0}.get(torch.backends.cpu.get_cpu_capability(), 0.0)
    tiles = float(getattr(torch.cpu, "get_capabilities", dict[str, bool])().get("amx_bf16", False))
    figures = {"threads": float(torch.get_num_threads()), "vector_bytes": bytes_, "matrix_tiles": tiles}
    return {name: figure for name, figure in figures.items() if figure}


def overhead_figures(watch: Stopwatch) -> dict[str, float]:
    """Return seconds per operator of a step with almost no arithmetic, by stage, and of a bare call.

    Operators count as in a traced graph: as the dispatcher sees them, without views.
    """
    device = watch.device_type
    model = torch.nn.Sequential(
        *[layer for _ in range(20) for layer in (torch.nn.Linear(SMALL, SMALL), torch.nn.ReLU())]
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
    a, b = torch.randn(SMALL, device=device), torch.randn(SMALL, device=device)
    with torch.no_grad():
        call_s = _host_s(watch, lambda: torch.add(a, b))
        view_s = _host_s(watch, lambda: a.view(2, SMALL // 2))
    return {
        "call_s": call_s,
        "view_s": view_s,
        "launch_inference_s": inference_s / forward_ops,
        "launch_forward_s": forward_s / forward_ops,
        "launch_backward_s": max(both_s - forward_s, 0.0) / max(both_ops - forward_ops, 1),
        "launch_optimizer_s": optimizer_s / optimizer_ops,
        "launch_s": forward_s / forward_ops,
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
    source, threads, costs = torch.randn(2**19), torch.get_num_threads(), []
    for count in (threads, 1):
        torch.set_num_threads(count)
        with warm_memory():
            warm_s = watch.call_s(lambda: torch.relu(source))
        costs.append(max(watch.call_s(lambda: torch.relu(source)) - warm_s, 0.0) / (4.0 * source.numel()))
    torch.set_num_threads(threads)
    return fmean(costs)


def loader_figures(*, samples: int = 512, batch: int = 32) -> dict[str, float]:
    """Return DataLoader's seconds without workers, per sample (indexing, collate) and per batch."""
    data = torch.utils.data.TensorDataset(torch.randn(samples, 256), torch.zeros(samples, dtype=torch.long))

    def epoch_s(size: int) -> float:
        begun = time.perf_counter()
        for _ in torch.utils.data.DataLoader(data, batch_size=size):
            pass
        return time.perf_counter() - begun

    epoch_s(batch)
    few, many = min(epoch_s(batch) for _ in range(3)), min(epoch_s(1) for _ in range(3))
    per_batch = max(many - few, 0.0) / (samples - samples / batch)
    return {"loader_batch_s": per_batch, "loader_sample_s": max(few - per_batch * samples / batch, 0.0) / samples}


START_UP = """
import resource, time
begun = time.perf_counter()
def resident():
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith('VmHWM'))
bare = resident()
import torch
imported, took = resident(), time.perf_counter() - begun
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 8))
with torch.no_grad():
    model(torch.randn(2, 3, 8, 8))
inferred = resident()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
print(bare, imported, inferred, resident(), took)
"""


def start_up_figures(runner: ProcessRunner) -> dict[str, float]:
    """Return memory and time of a fresh interpreter, before and after torch and a first small step.

    ``first_step_s`` is the remaining time of the process: the interpreter's start and end, and the first training
    steps. Without ``/proc``, the result is empty.
    """
    begun = time.perf_counter()
    done = runner([sys.executable, "-c", START_UP], timeout_s=60)
    whole_s, words = time.perf_counter() - begun, done.stdout.split()
    if done.returncode != 0 or len(words) != 5:
        return {}
    bare, imported, inferred, stepped, took = (float(word) for word in words)
    return {
        "interpreter_bytes": bare,
        "framework_bytes": imported - bare,
        "first_pass_bytes": inferred - imported,
        "first_step_bytes": stepped - imported,
        "framework_import_s": took,
        "first_step_s": max(whole_s - took, 0.0),
    }


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

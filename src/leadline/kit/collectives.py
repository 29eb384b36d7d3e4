"""Sweep of collectives among the GPUs of this machine (NCCL), or among processes (gloo).

The rows have the form of a calibration's kernels: ``kind`` (``collective.all_reduce``), ``dtype``, ``dims`` with
``devices`` and ``bytes`` of the largest tensor of a device, and ``elapsed_s``, the median.
"""

import json
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List

from leadline.kit import KitError

PREFIX = "collective."
SIZES = [4**power for power in range(5, 15)]
"""Bytes of the largest tensor: 1 KiB to 256 MiB."""
QUICK_SIZES = SIZES[:6]
WARM_UP, SAMPLES = 3, 7
SAMPLE_S = 2e-3
"""Shorter collectives are timed several at once to amortize the cost of the clock."""
LIMIT_S = 300.0


def sweep_collectives(python: str, device_type: str, processes: int, *, quick: bool) -> List[Dict[str, Any]]:
    """Return the rows of all collectives among 2, 4, … and all ``processes``; on ``cuda`` each has a GPU.

    Without a number they are as many as this machine has GPUs; among less than two there are no rows.

    Raises:
        KitError: the processes fail or take longer than the limit; the message has their last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = {"device": device_type, "processes": processes, "quick": quick, "folder": folder}
        root = str(Path(__file__).parents[2])
        # The root leaves the path at once, so that packages beside Leadline never reach another Python.
        start = (
            f"import sys; sys.path.insert(0, {root!r}); from leadline.kit.collectives import run_group; "
            f"sys.path.remove({root!r}); run_group(sys.argv[1])"
        )
        try:
            done = subprocess.run(  # noqa: S603 - the interpreter is the user's own choice
                [python, "-c", start, json.dumps(request)], capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise KitError(f"collectives among {processes} processes took longer than {LIMIT_S:g} s") from error
        if done.returncode:
            line = (done.stderr.strip().splitlines() or ["no message"])[-1][:300]
            raise KitError(f"collectives among {processes} processes failed: {line}")
        path = Path(folder) / "rows.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def run_group(request: str) -> None:
    """Run the processes of a sweep, which write their rows into the folder of the request."""
    import torch.multiprocessing  # noqa: PLC0415 - the caller's Python may have no torch

    options = json.loads(request)
    gpus = torch.cuda.device_count() if options["device"] == "cuda" else 0
    options["processes"] = options["processes"] or gpus
    if gpus < options["processes"] and options["device"] == "cuda":
        sys.exit(f"{options['processes']} processes need as many GPUs, and torch sees {gpus}")
    if options["processes"] > 1:
        # A fork is safe, since counting GPUs starts no context.
        torch.multiprocessing.start_processes(_run_rank, (options,), nprocs=options["processes"], start_method="fork")


def _run_rank(rank: int, options: Dict[str, Any]) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    on_gpu = options["device"] == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    world = options["processes"]
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", init_method=f"file://{options['folder']}/meeting", rank=rank, world_size=world,
        timeout=timedelta(seconds=LIMIT_S),
    )  # fmt: skip
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    counts = sorted({world, *(2**power for power in range(1, 10) if 2**power < world)})
    rows: List[Dict[str, Any]] = []
    for devices in counts:
        group = dist.new_group(list(range(devices)))
        if rank < devices:
            for size in QUICK_SIZES if options["quick"] else SIZES:
                rows += _time_size(dist, group, devices, size, device)
        dist.barrier()
    if rank == 0:
        (Path(options["folder"]) / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def _time_size(dist: Any, group: Any, devices: int, size: int, device: Any) -> List[Dict[str, Any]]:
    """Return a row for each collective that the backend has; all ranks of the group run this alike."""
    import torch  # noqa: PLC0415

    whole = torch.ones(max(size // 4, devices), device=device)
    whole = whole[: len(whole) // devices * devices]
    part = torch.ones(len(whole) // devices, device=device)
    rank, other = dist.get_rank(group), torch.empty_like(whole)

    def send() -> None:
        if rank < 2:
            (dist.recv if rank else dist.send)(whole, 1 - rank, group=group)

    calls: Dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send": send,
    }
    rows = []
    for name, call in calls.items():
        if name == "send" and devices > 2:
            continue
        try:
            call()
        except RuntimeError:  # gloo lacks some of them
            continue
        dims = {"devices": devices, "bytes": whole.numel() * 4}
        elapsed_s = _median_s(dist, group, call, device)
        rows.append({"kind": PREFIX + name, "dtype": "float32", "dims": dims, "elapsed_s": elapsed_s})
    return rows


def _median_s(dist: Any, group: Any, call: Callable[[], object], device: Any) -> float:
    """Return the median seconds of a call on the slowest rank."""
    import torch  # noqa: PLC0415

    def sample(count: int) -> float:
        dist.barrier(group=group)
        begun = time.perf_counter()
        for _ in range(count):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        slowest = torch.tensor([(time.perf_counter() - begun) / count], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
        return float(slowest)

    once_s = min(sample(1) for _ in range(WARM_UP))
    count = max(1, round(SAMPLE_S / max(once_s, 1e-7)))
    return sorted(sample(count) for _ in range(SAMPLES))[SAMPLES // 2]

"""Run one small model in this process; print the time and memory of its steps, which predictions are compared with."""

import gc
import json
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from statistics import median
from typing import Any

import torch


def main(request: dict[str, Any]) -> dict[str, float]:
    """Time the model's steps and read the peak memory of this process.

    The request has ``file``, ``function``, ``shape``, ``dtype``, ``training`` and ``budget_s``. The loss is the mean of
    the output and the optimizer AdamW, as the prediction assumes.
    """
    torch.manual_seed(0)
    spec = spec_from_file_location("measured_model", request["file"])
    if spec is None or spec.loader is None:
        raise FileNotFoundError(request["file"])
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    model = getattr(module, request["function"])()
    model.train(request["training"])
    x = _input(request)
    step = _training_step(model, x) if request["training"] else _inference_step(model, x)
    return _timed(step, request["budget_s"])


def _input(request: dict[str, Any]) -> torch.Tensor:
    if request["dtype"] == "int64":
        return torch.randint(0, 2000, request["shape"])
    return torch.randn(request["shape"])


def _training_step(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

    return step


def _inference_step(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def _timed(step: Callable[[], None], budget_s: float) -> dict[str, float]:
    """Return the median seconds of a step and the peak memory of the process."""
    for _ in range(4):
        step()
    gc.collect()
    times: list[float] = []
    until = time.perf_counter() + budget_s
    while len(times) < 8 or (time.perf_counter() < until and len(times) < 2000):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return {
        "step_s": median(times),
        "peak_bytes": float(_peak_bytes()),
        "steps": float(len(times)),
    }


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="utf-8") as status:  # noqa: PTH123 - a pseudo-file
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")

"""Run one model of the kit on the CPU in this process, and print the peaks of its memory.

Usage: python real_step.py REQUEST.json. The process' own peak is read after a few steps, before the profiler runs. The
peak of live bytes is what parameters, buffers and the optimizer's state hold before a step, and what the profiler's
memory events add to that within it: everything that PyTorch's CPU allocator hands out, also to oneDNN for its copies
and workspaces, and nothing that a library takes from the C library by itself.
"""

import contextlib
import gc
import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.memory.models import with_loss

STEPS = 5
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
}


def main(request):
    """Take steps until the memory has settled, then one under the profiler."""
    torch.manual_seed(0)
    torch.set_num_threads(request["threads"])
    model = with_loss(request["model"], request["size"])
    training = request["phase"] == "training"
    model.train(training)
    if not request["precision"].startswith("amp-") and request["precision"] != "fp32":
        model.to(torch.bfloat16)
    if request["checkpointing"]:
        model.gradient_checkpointing_enable()
    optimizer = None
    if training:
        kind, options = OPTIMIZERS[request["optimizer"]]
        optimizer = kind(model.parameters(), lr=1e-5, **options)
    for _ in range(STEPS):
        step(request, model, optimizer)
    process_bytes = peak_of_process()
    held = held_bytes(model, optimizer)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(request, model, optimizer)
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return {
        "held_bytes": held,
        "live_bytes": held + highest(profiler),
        "process_bytes": process_bytes,
        "vector_bytes": 64 if wide else 32,
        "torch": torch.__version__,
    }


def step(request, model, optimizer):
    """Take one optimizer step, or ask the model once."""
    with contextlib.ExitStack() as stack:
        if optimizer is None:
            stack.enter_context(torch.no_grad())
        for _ in range(request["accumulation"]):
            with cast(request):
                out = model(batch(request))
            if optimizer is not None:
                out.loss.backward()
            del out
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def cast(request):
    """Return the context that the forward pass runs in."""
    if request["precision"].startswith("amp-"):
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return contextlib.nullcontext()


def batch(request):
    """Return a new batch, as a loader would."""
    if request["dtype"] == "int64":
        return torch.randint(0, 1000, request["shape"])
    made = torch.bfloat16 if request["precision"] == "bf16" else torch.float32
    return torch.empty(request["shape"], dtype=made).normal_()


def held_bytes(model, optimizer):
    """Return the bytes that stay from step to step, shared memory once."""
    gc.collect()
    tensors = [*model.parameters(), *model.buffers()]
    for state in optimizer.state.values() if optimizer else ():
        tensors += [one for one in state.values() if isinstance(one, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def highest(profiler):
    """Return the highest sum of the profiler's allocations and releases."""
    events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def peak_of_process():
    """Return the most that the process has had resident, in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(json.dumps(main(json.load(file))))

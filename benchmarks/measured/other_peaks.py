"""Ask two alternatives for the peak of points of the bench: weights times a constant, and torch's MemTracker.

Usage: python other_peaks.py REQUESTS.json. Prints one line of JSON for each request: bytes and seconds of both. The
first is what ``accelerate estimate-memory`` prints, by its own function where accelerate is installed.
"""

import json
import sys
import time

import torch
from real_step import OPTIMIZERS, batch, cast
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from benchmarks.memory.models import with_loss

ITERATIVE = "multiple iterative calls"
"""What MemTracker says of a module that a pass calls twice, as recomputed and shared layers are; it refuses these."""
STEPS = 2
"""The optimizer's state appears in the first; MemTracker's own tutorial takes as many."""

try:
    from accelerate.commands.estimate import estimate_training_usage
except ImportError:

    def estimate_training_usage(size, precision):
        """Return the parts for Adam (huggingface/accelerate, src/accelerate/commands/estimate.py, release 1.15)."""
        if precision == "float32":
            return {"model": size, "gradients": size, "optimizer": 2 * size, "step": 4 * size}
        return {"model": size, "gradients": size + size // 2, "optimizer": 2 * size, "step": 2 * size}


def main(requests):
    """Answer each request on its own."""
    for request in requests:
        begun = time.perf_counter()
        constant = weights_only(request)
        weights_s = time.perf_counter() - begun
        begun = time.perf_counter()
        tracked, refused = None, ""
        try:
            tracked = mem_tracker(request)
        except NotImplementedError as error:
            refused = str(error)
            if ITERATIVE not in refused:
                raise
        print(json.dumps({
            "key": request["key"], "weights_bytes": constant, "weights_s": weights_s,
            "tracker_bytes": tracked, "tracker_refused": refused, "tracker_s": time.perf_counter() - begun,
        }), flush=True)  # fmt: skip


def weights_only(request):
    """Return the model's size times the tool's constant; in inference its size in the dtype of the weights."""
    with torch.device("meta"):
        model = with_loss(request["model"], request["size"])
    size = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
    if request["phase"] == "training":
        usage = estimate_training_usage(size, "float32" if request["precision"] == "fp32" else "bfloat16")
        return max(usage.values())
    return size // 2 if request["precision"] == "bf16" else size


def mem_tracker(request):
    """Return the peak that MemTracker sees of a step on fake tensors, the optimizer's state there."""
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16 if request["precision"] == "bf16" else torch.float32)
        model = with_loss(request["model"], request["size"])  # fake weights cannot be cast afterwards
        torch.set_default_dtype(torch.float32)
        model.train(request["phase"] == "training")
        if request["checkpointing"]:
            model.gradient_checkpointing_enable()
        tracker = MemTracker()
        if request["phase"] != "training":
            tracker.track_external(model)
            with tracker, torch.no_grad(), cast(request):
                model(batch(request))
            return peak(tracker)
        kind, options = OPTIMIZERS[request["optimizer"]]
        optimizer = kind(model.parameters(), **options)
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(STEPS):
                for _ in range(request["accumulation"]):
                    with cast(request):
                        out = model(batch(request))
                    out.loss.backward()
                    del out
                    tracker.reset_mod_stats()
                optimizer.step()
                optimizer.zero_grad()
        return peak(tracker)


def peak(tracker):
    """Return the bytes of the CPU's tensors at the peak."""
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        main(json.load(file))

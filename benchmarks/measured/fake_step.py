"""One training step of a model on PyTorch's own fake tensors, bare or under its MemTracker.

Usage: python fake_step.py MODEL.py bare|memtracker BATCH LENGTH.
"""

import contextlib
import runpy
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def main(path, how, batch, length):
    """Build the model, run one step forward, backward and AdamW, and print the peak where it is tracked."""
    build = runpy.run_path(path)["build"]
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = contextlib.nullcontext()
        if how == "memtracker":
            from torch.distributed._tools.mem_tracker import MemTracker

            tracker = MemTracker()
            tracker.track_external(model, optimizer)
        with tracker:
            model(torch.zeros(batch, length, dtype=torch.int64)).float().mean().backward()
            optimizer.step()
    if how == "memtracker":
        print(sum(tracker.get_tracker_snapshot("peak")[torch.device("cpu")].values()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

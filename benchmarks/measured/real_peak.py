"""Run a script on the CPU for three steps and print the peak of live tensor bytes in the third, by the profiler.

Usage: python real_peak.py SCRIPT [ARGUMENTS]. What is alive when the third step starts is counted from the tensors
themselves, without those of the data set; from there the profiler's memory events say what is taken and given back.
"""

import gc
import json
import os
import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

STEPS = {}
STATE = {"base": 0, "backward": 0}
DATASETS = []
OPTIMIZERS = []
MARK = "third step begins"
PROFILER = profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def main():
    """Run the script with the hooks in place."""
    make = DataLoader.__init__

    def init(self, dataset, *args, **kwargs):
        DATASETS.append(dataset)
        make(self, dataset, *args, **{**kwargs, "num_workers": 0, "persistent_workers": False})

    DataLoader.__init__ = init
    run = torch.autograd.backward

    def backward(*args, **kwargs):
        run(*args, **kwargs)
        STATE["backward"] += 1
        if not OPTIMIZERS:
            _boundary(STATE["backward"])

    torch.autograd.backward = backward
    set_up = torch.optim.Optimizer.__init__

    def optimizer(self, *args, **kwargs):
        OPTIMIZERS.append(type(self).__name__)
        set_up(self, *args, **kwargs)

    torch.optim.Optimizer.__init__ = optimizer
    register_optimizer_step_post_hook(_after_step)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    sys.stdout = sys.stderr
    PROFILER.start()
    runpy.run_path(sys.argv[0], run_name="__main__")


def _after_step(optimizer, *_):
    STEPS[id(optimizer)] = STEPS.get(id(optimizer), 0) + 1
    if STEPS[id(optimizer)] == min(STEPS.values()):
        _boundary(min(STEPS.values()))


def _boundary(step):
    if step == 2:
        STATE["base"] = _alive()
        with torch.profiler.record_function(MARK):
            pass
    if step == 3:
        PROFILER.stop()
        wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
        found = {"peak_bytes": STATE["base"] + _highest(), "vector_bytes": 64 if wide else 32}
        sys.__stdout__.write(json.dumps(found) + "\n")
        sys.__stdout__.flush()
        os._exit(0)


def _highest():
    """Return the highest sum of the profiler's allocations and releases after the mark.

    The profiler runs from the start, since it does not report the release of what it did not see allocated.
    """
    events = PROFILER.profiler.kineto_results.events()
    begin = next(one.start_ns() for one in events if one.name() == MARK)
    events = [one for one in events if one.name() == "[memory]" and one.start_ns() >= begin]
    level = highest = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        level += event.nbytes()
        highest = max(highest, level)
    return highest


def _alive():
    """Return the bytes of all tensors there are, shared memory once, without the data sets' own."""
    gc.collect()
    stored = set()
    for dataset in DATASETS:
        _collect(dataset, stored)
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
            for one in (thing, thing.grad if thing.is_leaf else None):
                if one is not None:
                    storage = one.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
    return sum(size for place, size in found.items() if place not in stored)


def _collect(thing, stored, depth=4):
    if isinstance(thing, torch.Tensor):
        stored.add(thing.untyped_storage().data_ptr())
    elif depth and isinstance(thing, (list, tuple)):
        for one in thing:
            _collect(one, stored, depth - 1)
    elif depth and hasattr(thing, "__dict__"):
        for one in vars(thing).values():
            _collect(one, stored, depth - 1)


if __name__ == "__main__":
    main()

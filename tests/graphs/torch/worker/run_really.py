"""Run scripts to their end on the CPU, each in a fork of one process, and print what was true and what the loop output.

Usage: python run_really.py SOURCES JSON, where JSON is a list of ``[name, path, arguments]``; one JSON line each.
"""

import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import warnings
from pathlib import Path


def main(sources, jobs):
    sys.path.insert(0, sources)
    import torch

    importlib.import_module("sklearn.model_selection")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, path, arguments in jobs:
        with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if child == 0:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                run(path, arguments, answer)
            _, status = os.waitpid(child, 0)
            answer.seek(0)
            output.seek(0)
            facts = json.loads(answer.read() or "{}")
            sys.stdout.write(
                json.dumps({"name": name, "status": status, "output": output.read()[-800:], **facts}) + "\n"
            )
            sys.stdout.flush()


def run(path, arguments, answer):
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from leadline.graphs.torch.worker import loop_hooks

    early = {}
    counts = {}

    def after_step(optimizer, *_):
        weights = id(optimizer.param_groups[0]["params"][0])  # a new optimizer continues where the last one ended
        counts[weights] = counts.get(weights, 0) + 1
        if counts[weights] == 3 and (not early or sum(counts.values()) == 3):
            early.update(loop_hooks.read_facts(), parameters=trained(torch))

    def after_backward(*args, **kwargs):
        result = watched(*args, **kwargs)
        if loop_hooks._watch.backward_count == 3 and not counts:
            early.update(loop_hooks.read_facts(), parameters=trained(torch))
        return result

    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    # The hooks would be compiled into the model. A trace runs compiled code as eager code, too.
    torch.compile = lambda function=None, **_: function if function is not None else lambda function: function
    watched = torch.autograd.backward
    torch.autograd.backward = after_backward
    loop_hooks.watch_loop(path)
    register_optimizer_step_post_hook(after_step)
    failed = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        failed = int(bool(end.code))
    except BaseException:  # noqa: BLE001 - whatever the script raises is its result
        import traceback

        traceback.print_exc()
        failed = 1
    if not early:
        early = {**loop_hooks.read_facts(), "parameters": trained(torch)}
    steps = min(counts.values()) if counts else loop_hooks._watch.backward_count
    if early["evaluation_batches_per_epoch"] is None:
        # A trace goes on to the evaluation after its steps.
        early["evaluation_batches_per_epoch"] = loop_hooks.read_facts()["evaluation_batches_per_epoch"]
    json.dump({"facts": early, "steps": steps, "backward": loop_hooks._watch.backward_count}, answer)
    answer.flush()
    sys.stdout.flush()
    os._exit(failed)


def trained(torch):
    """Count the weights that received a gradient, shared ones once."""
    counted = {}
    for parameter in gc.get_objects():
        if type(parameter) in (torch.Tensor, torch.nn.Parameter) and parameter.is_leaf and parameter.requires_grad:
            counted[parameter.data_ptr()] = parameter.numel()
    return sum(counted.values())


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

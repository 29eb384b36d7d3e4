"""Run a script on the simulated device and record nothing: the baseline of the tracer's own cost.

Usage: python bare_worker.py BOOTSTRAP REQUEST.json, in place of python BOOTSTRAP REQUEST.json.
"""

import json
import runpy
import sys
from pathlib import Path


def main(bootstrap, request_file):
    """Run the script on PyTorch's own fake tensors for as many steps, and answer with an empty job."""
    del sys.path[0]  # this folder
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    confinement = runpy.run_path(bootstrap)["confine"](request, request["target"])
    from leadline.graphs.torch.worker import main as worker

    original = worker.install_hooks

    def install_hooks(session):
        from leadline.graphs.torch.worker import fake_tensors, limited_loaders, recorder, step_watcher

        for name in ("_record", "track", "track_parameter", "mark", "mark_gradients", "resize", "append"):
            setattr(recorder.Recorder, name, lambda *_, **__: None)
        recorder.ResultCache.carry_out = lambda _, *call: fake_tensors.FAKE_MODE.dispatch(*call)
        limited_loaders.MEASURED_LOADS = 0
        session.count_s = 0.0
        step_watcher.BatchPlanner.sizes_differ = False
        return original(session)

    worker.install_hooks = install_hooks
    worker._answer = lambda *_: {"job": {"step": {"ops": []}}}
    worker.serve(request, confinement)


if __name__ == "__main__":
    main(*sys.argv[1:])

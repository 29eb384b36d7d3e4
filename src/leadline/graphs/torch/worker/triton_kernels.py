"""Triton kernels of the script and its packages: a launch on tensors without data is one op, and compiles nothing."""

from functools import partial
from typing import Any

from leadline.graphs.torch.worker import processes
from leadline.graphs.torch.worker.kernels import is_fake, kernels
from leadline.graphs.torch.worker.session import TraceSession


def install_triton_kernels(session: TraceSession) -> None:
    """Record the launches of Triton kernels, once Triton is loaded."""
    processes.after_import("triton.runtime.jit", partial(_record_launches, session))
    processes.after_import("triton.runtime.autotuner", _skip_tuning)


def _record_launches(session: TraceSession, module: Any) -> None:
    run = module.JITFunction.run

    def launch(kernel: Any, *args: Any, **settings: Any) -> Any:
        if not is_fake(*args, *settings.values()):
            return run(kernel, *args, **settings)
        name = getattr(kernel.fn, "__name__", "")
        session.low_confidence = True
        session.note(f"the Triton kernel {name} is counted by the bytes of its tensors: its operations are unknown")
        kernels.triton_kernel([value for value in (*args, *settings.values()) if is_fake(value)])
        return None

    module.JITFunction.run = launch


def _skip_tuning(module: Any) -> None:
    """Launch a kernel without the search for its best block sizes, which would time it."""
    for kind in (module.Autotuner, module.Heuristics):
        kind.run = _without_tuning(kind.run)


def _without_tuning(original: Any) -> Any:
    def run(tuner: Any, *args: Any, **settings: Any) -> Any:
        launch = tuner.fn.run if is_fake(*args, *settings.values()) else partial(original, tuner)
        return launch(*args, **settings)

    return run

"""Count the steps of PyTorch and the batches of Keras through their own hooks."""

from __future__ import annotations

import functools
import sys

from . import loops
from .bounds import MOST_COUNT
from .record import STATE, DurationSample, clock

TYPE_CHECKING = False  # typing itself takes a tenth of a short script's start
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

OPTIMIZERS = 16


def watch_torch(torch: Any) -> None:
    """Count optimizer steps, and backward passes of loops that update the weights by hand."""
    STATE.framework_s = clock()
    loops.watch_compiler(torch)
    # Imported here: torch is not loaded when this module is.
    from torch.optim import optimizer

    optimizer.register_optimizer_step_post_hook(_stepped)
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = backward(*args, **kwargs)
        _went_backward()
        return result

    torch.autograd.backward = counted


_backward = DurationSample()


def _went_backward() -> None:
    if not STATE.is_watched_thread() or STATE.steps:
        return
    _backward.tick(clock())
    if _backward.count == 1:
        STATE.chain = [loop.number for loop in STATE.stack]
        # The weights are updated by hand, so no optimizer step will come.
        STATE.framework_s = None
    STATE.frameworks.setdefault("torch", {})["backward"] = _backward.count + 1


def _stepped(optimizer: Any, *_: Any) -> None:
    if not STATE.is_watched_thread():
        return
    times = STATE.steps.get(id(optimizer))
    if times is None:
        # Some programs make an optimizer for each layer or step.
        if len(STATE.steps) >= OPTIMIZERS:
            return
        times = STATE.steps[id(optimizer)] = DurationSample()
    # The chain of loops does not change, so one look at the call stack is enough.
    if times.count == 0:
        try:
            STATE.chain = [loop.number for loop in STATE.stack]
            STATE.frameworks.setdefault("torch", {}).update(_trainer(sys._getframe(1)))
        except Exception as error:  # noqa: BLE001 - never the job's affair
            STATE.remark(error, "the loop around a step")
    STATE.step_done(times, clock())


def _trainer(frame: Any) -> Dict[str, Any]:
    """Return the total steps that a trainer on the call stack reports: Hugging Face's or Lightning's."""
    frames = 0
    while frame is not None and frames < 60:
        owner: Any = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        for kind in type(owner).__mro__:
            package = kind.__module__.partition(".")[0]
            if kind.__name__ == "Trainer" and package == "transformers":
                return {"trainer": "Hugging Face Trainer", "total_steps": _whole(owner.state.max_steps)}
            if kind.__name__ == "Trainer" and package in ("lightning", "pytorch_lightning"):
                return {"trainer": "Lightning Trainer", "total_steps": _whole(owner.estimated_stepping_batches)}
        frame, frames = frame.f_back, frames + 1
    return {}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, (int, float)) and 0 < value <= MOST_COUNT else None


def watch_keras(keras: Any) -> None:
    """Add a callback to every callback list of Keras."""
    from keras.src.callbacks.callback_list import CallbackList

    original_init = CallbackList.__init__

    @functools.wraps(original_init)
    def with_callback(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        try:
            if STATE.is_watched_thread():
                watch = _callback(keras)
                watch.set_params(self.params)
                self.callbacks.append(watch)
        except Exception as error:  # noqa: BLE001 - never the job's affair
            STATE.remark(error, "Keras could not be watched")

    CallbackList.__init__ = with_callback
    STATE.extra.append(lambda: {"keras": _keras_document()})


class _FitRecord:
    """Epochs and batches of ``fit``."""

    def __init__(self) -> None:
        self.epochs, self.batches = DurationSample(), DurationSample()
        self.params: Dict[str, Any] = {}
        self.in_batches_s = self.in_epochs_s = 0.0
        self.passes = self.in_passes = self.current = 0


FIT = _FitRecord()


def _keras_document() -> Dict[str, Any]:
    params = {"asked_epochs": FIT.params.get("epochs"), "asked_steps": FIT.params.get("steps")}
    return {
        "epochs": FIT.epochs.document(), "batches": FIT.batches.document(), **params,
        "in_epochs_s": FIT.in_epochs_s, "passes": FIT.passes, "in_passes": FIT.in_passes,
    }  # fmt: skip


def _callback(keras: Any) -> Any:
    class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Times epochs and batches of ``fit``."""

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            STATE.frameworks.setdefault("keras", {})
            FIT.params, FIT.current, FIT.in_batches_s = self.params or {}, 0, 0.0
            FIT.epochs.mark_s = clock()
            FIT.epochs.began_s = FIT.epochs.began_s or FIT.epochs.mark_s
            FIT.batches.mark_s = None

        def on_train_batch_begin(self, *_: Any, **__: Any) -> None:
            if FIT.batches.mark_s is None:
                FIT.batches.mark_s = clock()
                FIT.batches.began_s = FIT.batches.began_s or FIT.batches.mark_s

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            now_s, batches = clock(), FIT.batches
            if batches.mark_s is None:
                return
            FIT.in_batches_s += now_s - batches.mark_s
            FIT.current += 1
            batches.add(now_s - batches.mark_s)
            batches.mark_s = now_s
            STATE.consider(batches.count, now_s)

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            if FIT.epochs.mark_s is None:
                return
            FIT.epochs.add(clock() - FIT.epochs.mark_s)
            FIT.epochs.mark_s = None
            FIT.in_epochs_s += FIT.in_batches_s
            FIT.passes, FIT.in_passes = FIT.passes + 1, FIT.in_passes + FIT.current

    return KerasCallback()


INSTALLERS: Dict[str, Callable[[Any], None]] = {"torch": watch_torch, "keras": watch_keras}

"""Evaluation between steps without a loader: the script calls its model without gradients, in evaluation mode."""

from typing import Any, List, Optional, Tuple

import torch

from leadline.graphs.torch.worker import loop_hooks
from leadline.graphs.torch.worker.batches import moved_bytes
from leadline.graphs.torch.worker.recorder import Recorder
from leadline.graphs.torch.worker.windows import TraceWindow, count_weights


class EvaluationCalls:
    """The outermost calls of a model that trains, between the traced steps.

    ``made``: All that were made; ``number``: those of one evaluation; ``period``: N of the ``... % N`` around it, zero
    without one.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._began: Optional[Tuple[int, List[Tuple[int, int]]]] = None
        self._since_step = self._moved = 0
        self.largest: Optional[TraceWindow] = None
        self.made = self.number = self.period = 0

    def count(self, module: Any) -> bool:
        """Count a call if it is one of an evaluation, and return whether it is."""
        if module.training or torch.is_grad_enabled() or not is_trained(module, self._recorder.optimizers):
            return False
        self.made += 1
        self._since_step += 1
        if self._since_step == 1 and not self.period:  # the others are of the same evaluation
            self.period = loop_hooks.period_of_call()
        return True

    def begin(self) -> None:
        """Begin such a call."""
        self._began = self._recorder.count, [(serial, size) for serial, size, _ in self._recorder.live.values()]

    def end(self) -> None:
        """End the call that has begun. The one that moves most stands for all."""
        first, held = self._began or (0, [])
        whole, call = self._recorder.window, TraceWindow(first, held)
        call.ops = whole.ops[max(first - whole.first, 0) :]
        call.events = [event for event in whole.events if event[0] >= first]
        moved = moved_bytes(call)
        if moved > self._moved:
            self.largest, self._moved = call, moved
            weights = (reference() for reference in self._recorder.parameters)
            call.parameters, call.parameter_bytes = count_weights(weights, self._recorder.live)

    def end_step(self) -> bool:
        """Return whether the model was evaluated since the last step."""
        number, self._since_step = self._since_step, 0
        self.number = max(self.number, number)
        return number > 0


def is_trained(module: Any, optimizers: List[Any]) -> bool:
    """Return whether an optimizer has a parameter of a module."""
    parameter = next((each for each in module.parameters() if each.requires_grad), None)
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    return parameter is not None and any(each is parameter for group in groups for each in group)

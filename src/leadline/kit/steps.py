"""The step of a point: model, inputs, precision, optimizer, and fast weight initialization."""

import contextlib
import math
from typing import Any, Callable, Dict, Iterator

import torch
from torch import nn
from torch.nn import functional, init

from leadline.kit.design import PRECISIONS, MeasurementPoint
from leadline.kit.machine import DTYPES, set_tf32
from leadline.kit.specs import DECODE, PREFILL, SPECS, TRAINING
from leadline.kit.zoo import build

BLOCK = 1 << 20
"""Random numbers drawn once and repeated along a tensor; the values do not affect a step's time."""
SLOW = (
    "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "uniform_", "normal_", "trunc_normal_",
)  # fmt: skip
"""Functions of ``torch.nn.init`` that draw a number for each weight."""


@contextlib.contextmanager
def fast_weight_init(device_type: str) -> Iterator[None]:
    """Context in which layers on a CPU fill their weights with a repeated block of random numbers."""
    # torch's generator would take longer than the measurement; a GPU is fast enough.
    if device_type != "cpu":
        yield
        return
    drawn = torch.rand(BLOCK) * 2 - 1
    scaled_to: Dict[int, torch.Tensor] = {}
    originals = {name: getattr(init, name) for name in SLOW}

    def fill(tensor: Any, *_: Any, **__: Any) -> Any:
        """Fill with numbers as far from zero as ``torch.nn.Linear`` draws them: up to 1 / sqrt(inputs of a unit)."""
        inputs = tensor[0].numel() if tensor.dim() > 1 else 1024
        if inputs not in scaled_to:
            scaled_to[inputs] = drawn / math.sqrt(max(1, inputs))
        scaled = scaled_to[inputs]
        with torch.no_grad():
            flat = tensor.view(-1)
            whole = len(flat) // BLOCK * BLOCK
            flat[:whole].view(-1, BLOCK).copy_(scaled)
            flat[whole:].copy_(scaled[: len(flat) - whole])
        return tensor

    try:
        for name in SLOW:
            setattr(init, name, fill)
        yield
    finally:
        for name, function in originals.items():
            setattr(init, name, function)


SMALLEST_VOCABULARY = 1000


class MeasuredModel:
    """A model on a device. ``ready`` makes the rest of a step, so that the weights' memory is measured separately."""

    def __init__(self, point: MeasurementPoint, device_type: str) -> None:
        self.point, self.device = point, torch.device(device_type)
        self.dtype = DTYPES[PRECISIONS[point.precision]]
        self.autocast = point.precision.startswith("amp-")
        set_tf32(enabled=point.precision == "tf32")
        torch.manual_seed(0)
        with self.device, fast_weight_init(device_type):
            self.model: nn.Module = build(point.model, point.size)
        if not self.autocast:
            self.model.to(self.dtype)
        if point.channels_last:
            self.model.to(memory_format=torch.channels_last)
        self.model.train(point.phase == TRAINING)
        if point.checkpointing:
            self.model.stack.checkpointing = True
        weights = list(self.model.parameters())
        self.parameters = sum(weight.numel() for weight in weights)
        self.parameter_bytes = sum(weight.numel() * weight.element_size() for weight in weights)

    def ready(self) -> Callable[[], object]:
        """Create inputs and optimizer, and return the step."""
        phase = self.point.phase
        inputs = self._inputs()
        if phase in (PREFILL, DECODE):
            return self._cached(inputs, phase)
        if self.point.compiled:
            self.model = torch.compile(self.model)
        return self._training(inputs) if phase == TRAINING else self._inference(self.model, inputs)

    def _cast(self) -> Any:
        if not self.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def _inputs(self) -> Any:
        point, kind = self.point, SPECS[self.point.model].kind
        if kind == "tokens":
            return torch.randint(0, SMALLEST_VOCABULARY, (point.batch, point.size), device=self.device)
        shape = (point.batch, 3, point.size, point.size) if kind == "image" else (point.batch, point.size)
        images = torch.randn(shape, device=self.device, dtype=torch.float32 if self.autocast else self.dtype)
        return images.to(memory_format=torch.channels_last) if point.channels_last else images

    def _inference(self, model: Any, *inputs: Any) -> Callable[[], object]:
        def step() -> Any:
            with torch.inference_mode(), self._cast():
                return model(*inputs)

        return step

    def _cached(self, tokens: Any, phase: str) -> Callable[[], object]:
        """Return a step that fills the KV cache with the prompt, or adds one token."""
        point = self.point
        cache: Any = self.model.empty_cache(point.batch, point.size + 1, self.dtype, self.device)
        model = torch.compile(self.model) if point.compiled else self.model
        step_tokens, position = (tokens, 0) if phase == PREFILL else (tokens[:, :1].contiguous(), point.size)
        return self._inference(model, step_tokens, cache, position)

    def _training(self, inputs: Any) -> Callable[[], object]:
        optimizer = self._optimizer()
        scaler = None
        if self.autocast and self.dtype is torch.float16:
            scaler_class = getattr(torch.amp, "GradScaler", None)
            scaler = torch.cuda.amp.GradScaler() if scaler_class is None else scaler_class("cuda")
        spec, point = SPECS[self.point.model], self.point
        is_language = spec.kind == "tokens"
        # A class for each position, pixel or image.
        pixels = (point.size,) * 2 if spec.family == "unet" else ()
        targets = inputs.flatten() if is_language else torch.randint(0, 21, (point.batch, *pixels), device=self.device)

        def step() -> None:
            with self._cast():
                out = self.model(inputs)
                loss = functional.cross_entropy(out.flatten(0, 1) if is_language else out, targets)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=True)

        return step

    def _optimizer(self) -> Any:
        """Return the point's optimizer with torch's defaults."""
        name, parameters = self.point.optimizer, self.model.parameters()
        options: Dict[str, Any] = {"fused": True} if self.point.fused else {}
        if name == "adamw":
            return torch.optim.AdamW(parameters, lr=1e-5, **options)
        return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9 if name == "momentum" else 0.0, **options)

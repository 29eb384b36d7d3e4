"""Run every op without data, and record the ops and the memory that they allocate and free."""

import contextlib
import math
import time
import weakref
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from leadline.graphs.torch.worker import custom_ops, fake_tensors, ops, sparse, unknown_shapes
from leadline.graphs.torch.worker.ops import OpTraits, ResultCache
from leadline.graphs.torch.worker.session import TraceSession
from leadline.graphs.torch.worker.windows import RecordedOp, TraceWindow, count_weights

aten = torch.ops.aten
GPU_TYPES = (fake_tensors.CUDA_BACKEND, fake_tensors.SPARE_BACKEND)
LARGE_CONSTANT = 1024
"""Elements above which a constant of a module needs no values (masks, initial weights)."""
EQUAL, EQUAL_ELEMENTS = {"zeros", "ones", "full"}, fake_tensors.KEPT_LIMIT_BYTES // 4
"""Elements above which one with equal elements needs none. They take little time, and scripts count them."""
WATCHED_OPS, CALLING_ROUNDS = 200, 5
"""Ops over which the cost of watching one is measured."""
FILLED = {"zeros", "ones", "full", "randn", "rand", "normal", "randint"}
NEGATIONS = {"logical_not", "bitwise_not"}
TRUTHFUL = {"all", "any", "logical_and", "bitwise_and", "logical_or", "bitwise_or", *NEGATIONS}
"""Ops whose result is true or false where their input is assumed to be so."""
FORWARD_CONVOLUTIONS = ops.CONVOLUTIONS - {"convolution_backward"}
MADE_BY_MODULES = {"empty", "empty_strided"} | FILLED


class Recorder(TorchDispatchMode):
    """Runs ops on tensors without data, and keeps the current and the last complete window of ops."""

    def __init__(self, session: TraceSession) -> None:
        super().__init__()
        self.session = session
        self.stage = "forward"
        self.policy_type = "cpu" if session.policy == "cpu" else fake_tensors.gpu_device().type
        self.count = self.real_ops = self.handled = 0
        self.handled_s = self.host_s = 0.0
        self.live: Dict[int, Tuple[int, int, Any]] = {}
        self.live_bytes = self.peak_bytes = 0
        self.made_in: Dict[int, str] = {}
        self.category: Dict[int, str] = {}
        self.producer: Dict[int, int] = {}
        self.window = TraceWindow(0, [])
        self.serial = 0
        self.parameters: List[Any] = []
        self.optimizers: List[Any] = []
        self._traits: Dict[Any, OpTraits] = {}
        self._result_cache = ResultCache()

    def watching_cost_s(self) -> float:
        """Return the processor seconds by which recording slows each op on tensors with data."""
        tensor, times = torch.zeros(8, device="cpu"), []
        for mode in (contextlib.nullcontext(), self):
            with mode:
                tensor.neg()
                began = time.thread_time()
                for _ in range(WATCHED_OPS):
                    tensor.neg()
                times.append(time.thread_time() - began)
        return max(times[1] - times[0], 0.0) / WATCHED_OPS

    def calling_cost_s(self) -> float:
        """Return the processor seconds of a call of an op on tensors without data that are not in ``handled_s``."""
        host = torch.zeros(8)
        tensor = fake_tensors.empty_like(host, torch.device("cpu"), host.dtype)
        times = []
        for _ in range(CALLING_ROUNDS):  # after a fork, the first calls copy pages
            began_s, handled_s = time.thread_time(), self.handled_s
            for _ in range(WATCHED_OPS // CALLING_ROUNDS):
                tensor.neg()
            times.append(time.thread_time() - began_s - (self.handled_s - handled_s))
        return max(min(times), 0.0) / (WATCHED_OPS // CALLING_ROUNDS)

    give_values = give_results = give_zeros = fake_tensors.do_nothing
    """Tensors have no values here."""

    def cut(self) -> TraceWindow:
        """Close the current window and open the next one."""
        closed = self.window
        closed.parameters, closed.parameter_bytes = count_weights((ref() for ref in self.parameters), self.live)
        self.window = TraceWindow(self.count, [(serial, size) for serial, size, _ in self.live.values()])
        return closed

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled during a trace, so PyTorch need not guard each op against it

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        # PyTorch asks for it more often than it computes.
        if func is fake_tensors.DEVICE and isinstance(args[0], FakeTensor):
            return fake_tensors.inner_device(args[0])
        kwargs = kwargs or {}
        fake_tensors.NESTING[0] += 1
        began_s = time.thread_time()
        try:
            return self._dispatch(func, types, args, kwargs)
        finally:
            fake_tensors.NESTING[0] -= 1
            if not fake_tensors.NESTING[0]:
                self.handled += 1
                self.handled_s += time.thread_time() - began_s

    def _dispatch(self, func: Any, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = ops.read_traits(func)
        fake = False
        for kind in types:
            if kind is FakeTensor or issubclass(kind, FakeTensor):
                fake = True
            elif kind is not torch.Tensor and hasattr(kind, "__tensor_unflatten__"):  # a wrapper, such as DTensor
                return NotImplemented
        if traits.takes_device:
            kwargs, fake = self._resolve_device(traits, args, kwargs, fake)
        if not fake:
            return self._run_real(func, traits, args, kwargs)
        if (product := sparse.without_data_in(traits.name, args)) is not None:
            return self._dispatch(product[0], types, product[1], {})
        # Random numbers have no values here, and a script's generator is on the host (see fake_cuda).
        if kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": None}
        return self._run_fake(func, traits, types, args, kwargs)

    def _run_real(self, func: Any, traits: OpTraits, args: Any, kwargs: Dict[str, Any]) -> Any:
        self.real_ops += 1
        began_s = time.thread_time()
        out = func(*args, **kwargs)
        if self.session.real:
            self._record(func, traits, args, kwargs, out)
        elif fake_tensors.NESTING[0] == 1:
            host_s = time.thread_time() - began_s  # work on the host, which is in no graph
            self.handled_s -= host_s
            self.host_s += host_s
        return out

    def _resolve_device(self, traits: OpTraits, args: Any, kwargs: Dict[str, Any], fake: bool) -> Tuple[Any, bool]:
        """Return the arguments with the true device, and whether the op must run without data."""
        device = kwargs.get("device")
        if device is not None and (device.type in GPU_TYPES or device == fake_tensors.STAND_IN):
            kwargs, fake = {**kwargs, "device": fake_tensors.gpu_device()}, True
        elif device is not None and device.type == "cpu":
            kwargs = {**kwargs, "device": torch.device("cpu")}  # `cpu:0` would be another one
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if not fake and traits.name in MADE_BY_MODULES and kwargs.get("dtype") is not torch.uint8:
            fake = self._needs_no_values(traits.name, args)
        return kwargs, fake

    def _needs_no_values(self, name: str, args: Any) -> bool:
        """Return whether a host tensor is a constant of a module under construction and needs no values."""
        shape = args[2] if name == "normal" else args[0]
        sizes = shape if isinstance(shape, (list, tuple)) else (1,)
        most = EQUAL_ELEMENTS if name in EQUAL else LARGE_CONSTANT if name in FILLED else 0
        if not sizes or 0 in sizes or math.prod(sizes) < most:
            return False
        return fake_tensors.in_module_constructor()

    def _run_fake(self, func: Any, traits: OpTraits, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        if traits.name == "_to_copy":
            out = self._to_copy(func, traits, types, args, kwargs)
            if isinstance(out, FakeTensor) and out.untyped_storage()._cdata == args[0].untyped_storage()._cdata:
                return out  # nothing is copied
        elif traits.name == "copy_" and not isinstance(args[0], FakeTensor):
            return args[0]
        elif traits.custom:
            run = partial(self._carry_out, func, traits, types, args, kwargs)
            out, is_recorded = custom_ops.run_custom(self, func, args, kwargs, run)
            if is_recorded:
                return out
        else:
            out = self._carry_out(func, traits, types, args, kwargs)
            if (traits.name in fake_tensors.VALUE_OPS and not kwargs) or traits.name in fake_tensors.ARITHMETIC:
                fake_tensors.infer_value(func, args, kwargs, out)
            if traits.name in unknown_shapes.MARKED:
                unknown_shapes.mark(traits.name, args, out)
            if traits.name in TRUTHFUL and "_truth" in args[0].__dict__:
                out.__dict__["_truth"] = args[0].__dict__["_truth"] != (traits.name in NEGATIONS)
        if out is not NotImplemented and not isinstance(out, sparse.SparseMatrix):
            self._record(func, traits, args, kwargs, out)
        return out

    def _carry_out(self, func: Any, traits: OpTraits, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        if traits.name == "where" and args[0].dtype is torch.uint8:
            args = (args[0].bool(), *args[1:])  # as CUDA's kernel takes it, but not the rule of its shape
        if func is ops.INDEX and ops.has_mask(args[1]):
            self._note_fallback(func, args)
            args = (args[0], unknown_shapes.selected_places(*args))
        try:
            if traits.name in unknown_shapes.RULED:
                return unknown_shapes.assume_result(func, args, kwargs)
            out = self._result_cache.carry_out(func, types, args, kwargs)
            return fake_tensors.in_cudnn_format(out, *args[:2]) if traits.name in FORWARD_CONVOLUTIONS else out
        except (DataDependentOutputException, DynamicOutputShapeException):
            self.session.check_time()
            out = unknown_shapes.assume_result(func, args, kwargs)
            if out is NotImplemented:
                raise
            self._note_fallback(func, args)
            return out

    def _note_fallback(self, func: Any, args: Any) -> None:
        self.session.fallbacks[str(func)] += 1
        self.session.assume(unknown_shapes.assumption_note(func, args))

    def _to_copy(self, func: Any, traits: OpTraits, types: Sequence[type], args: Any, kwargs: Dict[str, Any]) -> Any:
        source = args[0]
        device = fake_tensors.true_device(source)
        target = kwargs.get("device") or device
        dtype = kwargs.get("dtype") or source.dtype
        if source.layout is not torch.strided:
            return self._without_data(source, target)
        if target.type == device.type:
            keeps_format = kwargs.get("memory_format") in (None, torch.preserve_format)
            if target.type != "cpu" and dtype == source.dtype and keeps_format:
                return aten.alias.default(source)
            out = self._carry_out(func, traits, types, args, kwargs)
            fake_tensors.infer_value(func, args, kwargs, out)
            unknown_shapes.mark(traits.name, args, out)
            return out
        if target.type == "cpu":
            self.session.assume(unknown_shapes.assumption_note(func, args))
            return fake_tensors.host_copy(source, dtype)
        out = fake_tensors.empty_like(source, target, dtype)
        fake_tensors.remember_value(out, source if isinstance(source, FakeTensor) else source.to(dtype))
        return out

    def _without_data(self, source: torch.Tensor, device: torch.device) -> Any:
        """Return a sparse tensor moved to the device, with its parts counted as input."""
        matrix = sparse.without_data(source, device)
        for part in (*matrix.parts, matrix.entries):
            self.track(part, "input")
        return matrix

    def _record(self, func: Any, traits: OpTraits, args: Any, kwargs: Dict[str, Any], out: Any) -> None:
        results = self._track_results(traits, args, out) if traits.fresh else []
        if traits.silent:
            return
        inputs: List[Tuple[Any, ...]] = []
        sources: List[int] = []
        written: List[Tuple[Any, ...]] = []
        device_seen = False
        tensors = ops.argument_tensors(args, kwargs)
        for argument, tensor in tensors:
            spec, on_device = self._spec(tensor)
            device_seen = device_seen or on_device
            inputs.append(spec)
            if argument in traits.mutated:
                written.append(spec)
                if isinstance(tensor, FakeTensor) and "_known" in tensor.__dict__:
                    del tensor.__dict__["_known"]
            producer = self.producer.get(spec[2])
            if producer is not None and producer not in sources:
                sources.append(producer)
        for tensor in results:
            spec, on_device = self._spec(tensor)
            device_seen = device_seen or on_device
            written.append(spec)
        if not device_seen:
            return
        holders = {argument for argument, _ in tensors}
        scalars = tuple(None if position in holders else value for position, value in enumerate(args))
        stage = self._stage(traits, args)
        if stage == "backward" and traits.name == "add" and args[0]._is_view():
            self.window.to_views.add(self.count)
        last = traits.name in ops.CONVOLUTIONS and ops.channels_last(args)
        self.append(RecordedOp(func, stage, tuple(inputs), tuple(written), scalars, tuple(sources), None, last))

    def _track_results(self, traits: OpTraits, args: Any, out: Any) -> List[torch.Tensor]:
        results = ops.result_tensors(out)
        for tensor in results:
            fake = isinstance(tensor, FakeTensor)
            if fake or self.session.real:
                moved = fake and traits.name == "_to_copy" and not isinstance(args[0], FakeTensor)
                self.track(tensor, "input" if moved else None)
        return results

    def _stage(self, traits: OpTraits, args: Any) -> str:
        """Return the stage. Closures that an optimizer calls run forward, and manual updates are the optimizer's."""
        if self.stage == "optimizer" and torch.is_grad_enabled():
            return "forward"
        is_traced = isinstance(args[0], FakeTensor) or self.session.real
        if is_traced and self.stage == "forward" and traits.mutated and not self.optimizers:
            memory = self._memory(args[0])
            if memory is not None and (args[0].requires_grad or self.category.get(memory[0]) == "parameter"):
                self.track_parameter(args[0])
                return "optimizer"
            if memory is not None and self.category.get(memory[0]) == "optimizer-state":
                return "optimizer"
        return self.stage

    def track_parameter(self, tensor: Any) -> None:
        """Count a trained tensor among the parameters, also one that no module made."""
        if self._memory(tensor) is None:
            self.track(tensor)  # one with data, which no module made
        memory = self._memory(tensor)
        if memory is not None and self.category.get(memory[0]) != "parameter":
            self.category[memory[0]] = "parameter"
            self.parameters.append(weakref.ref(tensor))

    def mark_gradients(self) -> None:
        """Mark the gradients of all parameters, for scripts without an optimizer object."""
        for ref in self.parameters:
            parameter = ref()
            if parameter is not None and parameter.grad is not None:
                self.mark(parameter.grad, "gradient")

    def append(self, op: RecordedOp) -> None:
        """Record one op."""
        for spec in op.outputs:
            self.producer[spec[2]] = self.count
        self.window.ops.append(op)
        self.count += 1

    def _spec(self, tensor: torch.Tensor) -> Tuple[Tuple[Any, ...], bool]:
        if tensor.layout is not torch.strided:
            return (tuple(tensor.shape), tensor.dtype, id(tensor), 0), True  # a sparse one, which has no storage
        storage = tensor.untyped_storage()
        key = storage._cdata
        on_device = fake_tensors.true_device(tensor).type == self.policy_type
        if on_device and key not in self.live:
            self.track(tensor, None if isinstance(tensor, FakeTensor) else "input")
        touched = min(tensor.numel() * tensor.element_size(), storage.nbytes())
        return (tuple(tensor.shape), tensor.dtype, key, touched if on_device else 0), on_device

    def track(self, tensor: torch.Tensor, category: Optional[str] = None) -> None:
        """Count the memory of a tensor from now until it is freed."""
        if fake_tensors.true_device(tensor).type != self.policy_type or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        self._allocate(key, storage.nbytes(), weakref.ref(storage, partial(self._release, key)))
        if category:
            self.category[self.serial] = category

    def resize(self, key: int, size: int) -> None:
        """Count a storage that was resized in place, as sharded parameters are."""
        memory = self.live.get(key)
        if memory is not None and memory[1] != size:
            self._event(memory[0], -memory[1])
            self._allocate(key, size, memory[2])

    def _allocate(self, key: int, size: int, reference: Any) -> None:
        self.serial += 1
        self.live[key] = (self.serial, size, reference)
        self.made_in[self.serial] = self.stage
        self._event(self.serial, size)

    def mark(self, tensor: Any, category: str) -> None:
        """Set the category of a tensor's memory."""
        memory = self._memory(tensor)
        if memory is not None:
            self.category[memory[0]] = category

    def _memory(self, tensor: Any) -> Optional[Tuple[int, int, Any]]:
        return self.live.get(getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata)

    def _release(self, key: int, _: Any) -> None:
        memory = self.live.pop(key, None)
        self.producer.pop(key, None)
        if memory is not None:
            self._event(memory[0], -memory[1])

    def _event(self, serial: int, size: int) -> None:
        if size:
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
            self.window.events.append((self.count, serial, size))

"""One rank of a distributed job, with nobody on the other side of its collectives."""

import contextlib
import importlib
from typing import Any, Dict, Iterable, Iterator, List

import torch

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.recorder import RecordedOp
from leadline.graphs.torch.worker.session import TraceSession

BUCKET_BYTES = 25 << 20
"""Gradients that DistributedDataParallel sends in one piece (its default ``bucket_cap_mb``)."""

REDUCING = "all_reduce reduce broadcast all_gather_into_tensor reduce_scatter_tensor all_to_all_single"
LISTING = "all_gather all_to_all reduce_scatter scatter gather"


def install_process_groups(session: TraceSession) -> None:
    """Answer process groups by PyTorch's fake one, and write down what would be sent."""
    if not torch.distributed.is_available():
        return
    _fake_groups(session)
    for name in (REDUCING + " " + LISTING).split():
        _replace(name, _collective(session, name))
    for name in ("barrier", "monitored_barrier"):
        _replace(name, lambda *_, **__: None)
    _replace("broadcast_object_list", lambda *_, **__: None)
    _replace("all_gather_object", _gather_object)
    _wrap_modules(session)
    _follow_resizing(session)
    if session.world_size > 1:
        _shard_on_the_device()
        torch.nn.modules.batchnorm.sync_batch_norm = _SyncedBatchNorm(session)


def _follow_resizing(session: TraceSession) -> None:
    """Follow sharded parameters, whose storage is filled for a layer's use and emptied after it."""
    own = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        found = own(storage, size)
        if session.recorder is not None:
            session.recorder.resized(storage._cdata, size)
        return found

    torch.UntypedStorage.resize_ = resize


def _shard_on_the_device() -> None:
    """Let FSDP take the number of a device for one of ``cuda``: PyTorch reads it as one of its spare slot."""
    utilities: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    asked_for, computing_on = utilities._get_device_from_device_id, utilities._get_compute_device
    utilities._get_device_from_device_id = lambda *args, **kwargs: _shown(asked_for(*args, **kwargs))
    utilities._get_compute_device = lambda module, ignored, _, *rest: _shown(computing_on(module, ignored, None, *rest))


class _SyncedBatchNorm:
    """Batch norm over all ranks: that of one rank, and the statistics it sends forward and backward."""

    def __init__(self, session: TraceSession) -> None:
        self.session = session

    def apply(
        self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float, momentum: float, _: Any, ranks: int
    ) -> Any:
        """Return what ``torch.nn.functional.batch_norm`` does."""
        channels = x.shape[1]
        if not self.session.bare:
            _append(self.session, "all_gather_into_tensor", 4 * ranks * (2 * channels + 1), torch.float32, ranks)
        out = torch.nn.functional.batch_norm(x, mean, variance, weight, bias, True, momentum, eps)
        if out.requires_grad and not self.session.bare:
            out.register_hook(lambda _: _append(self.session, "all_reduce", 8 * channels, torch.float32, ranks))
        return out


def _shown(device: Any) -> Any:
    return fake_tensors.CUDA if device is not None and device.type == fake_tensors.BACKEND else device


def _replace(name: str, function: Any) -> None:
    for module in (torch.distributed, torch.distributed.distributed_c10d):
        if hasattr(module, name):
            setattr(module, name, function)


def _fake_groups(session: TraceSession) -> None:
    own = torch.distributed.init_process_group

    def init(*_: Any, **__: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not torch.distributed.is_initialized():
            own(backend="fake", rank=0, world_size=session.world_size, store=FakeStore())

    _replace("init_process_group", init)
    _replace("is_nccl_available", lambda: True)
    new_group = torch.distributed.new_group
    _replace("new_group", lambda ranks=None, *_, **__: new_group(ranks, backend="fake"))


class _Done:
    """A collective that has finished."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return that it is done."""
        return True


def _collective(session: TraceSession, name: str) -> Any:
    def call(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        tensors: List[Any] = []
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif isinstance(value, (list, tuple)):
                tensors.extend(one for one in value if isinstance(one, torch.Tensor))
        record_collective(session, name, tensors, _ranks(session, (*args, *kwargs.values())))
        return _Done() if async_op else None

    return call


def _ranks(session: TraceSession, values: Iterable[Any]) -> int:
    """Return how many processes a collective with these arguments is among."""
    groups = [one for one in values if isinstance(one, torch.distributed.ProcessGroup)]
    return groups[0].size() if groups else session.world_size


def record_collective(session: TraceSession, name: str, tensors: List[Any], ranks: int) -> None:
    """Write down one collective over the given tensors; its size is that of the largest side."""
    recorder = session.recorder
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
    local = [t for t in local if fake_tensors.is_fake(t)]
    if recorder is None or session.bare or not local:
        return
    size = max(t.numel() * t.element_size() for t in local)
    _append(session, name, size, local[0].dtype, ranks)


def _append(session: TraceSession, name: str, size: int, dtype: torch.dtype, ranks: int) -> None:
    extra = {
        "kind": "communication",
        "dims": {"bytes": size, "ranks": ranks},
        "flops": 0.0,
        "bytes_read": size,
        "bytes_written": size,
    }
    spec = ((size // dtype.itemsize,), dtype, -1, size)
    session.recorder.append(RecordedOp(f"c10d.{name}", session.recorder.stage, (spec,), (spec,), (), (), extra))  # type: ignore[union-attr]


def collective_dims(raw: RecordedOp, session: TraceSession) -> Dict[str, int]:
    """Return the size of a collective that PyTorch issued itself: the larger of what goes in and what comes out."""
    size = max((spec[3] for spec in (*raw.inputs, *raw.outputs)), default=0)
    return {"bytes": size, "ranks": _ranks(session, map(_unboxed, raw.args))}


def _unboxed(value: Any) -> Any:
    """Return the process group that an op's argument stands for, or the argument."""
    if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
        return torch.distributed.ProcessGroup.unbox(value)
    return value


def _gather_object(objects: List[Any], mine: Any, *_: Any, **__: Any) -> None:
    objects[:] = [mine] * len(objects)


def _buckets(session: TraceSession, module: Any) -> List[torch.Tensor]:
    """Return the memory in which all gradients are held once more to be sent, in the formats of their weights."""
    sizes: Dict[torch.dtype, int] = {}
    for parameter in module.parameters():
        if parameter.requires_grad and fake_tensors.is_fake(parameter):
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if session.bare or session.world_size < 2 or session.policy != "cuda":
        return []
    made = [fake_tensors.empty_tensor((count,), dtype, fake_tensors.gpu_device()) for dtype, count in sizes.items()]
    for one in made:
        session.recorder.track(one, "gradient")  # type: ignore[union-attr]
    return made


def _wrap_modules(session: TraceSession) -> None:  # noqa: C901 - one class, made where its session is known
    class DistributedDataParallel(torch.nn.Module):
        """The wrapped module, whose gradients are summed over all ranks in buckets after the backward pass."""

        def __init__(self, module: Any, *_: Any, **settings: Any) -> None:
            super().__init__()
            self.module = module
            self.__dict__["_buckets"] = [] if settings.get("gradient_as_bucket_view") else _buckets(session, module)
            self.require_backward_grad_sync = True
            session.after_backward.append(self._sum_gradients)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            """Leave out the sums, as accumulation does."""
            self.require_backward_grad_sync = False
            try:
                yield
            finally:
                self.require_backward_grad_sync = True

        def join(self, *_: Any, **__: Any) -> Any:
            return contextlib.nullcontext()

        def register_comm_hook(self, *_: Any, **__: Any) -> None:
            session.note("the DDP communication hook is not traced")

        def _set_static_graph(self) -> None:
            """Do nothing: the graph is traced as it runs."""

        def _sum_gradients(self) -> None:
            if not self.require_backward_grad_sync or session.bare or session.world_size < 2:
                return
            sizes: Dict[torch.dtype, int] = {}
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    size = parameter.grad.numel() * parameter.grad.element_size()
                    sizes[parameter.grad.dtype] = sizes.get(parameter.grad.dtype, 0) + size
            session.recorder.stage = "backward"  # type: ignore[union-attr]
            for dtype, total in sizes.items():
                for sent in range(0, total, BUCKET_BYTES):
                    _append(session, "all_reduce", min(BUCKET_BYTES, total - sent), dtype, session.world_size)
            session.recorder.stage = "forward"  # type: ignore[union-attr]

    DistributedDataParallel.__module__ = "torch.nn.parallel.distributed"  # where a checkpoint of it looks
    DistributedDataParallel.__qualname__ = "DistributedDataParallel"
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel

"""One rank of a distributed job, without the other ranks of its collectives."""

import collections
import contextlib
import importlib
import itertools
import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, Dict, Iterable, Iterator, List, Tuple
from urllib.parse import parse_qsl, urlparse

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.expressions import first_number
from leadline.graphs.torch.worker.import_hooks import after_import
from leadline.graphs.torch.worker.ops import argument_tensors, result_tensors
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession, call_after
from leadline.graphs.torch.worker.windows import RecordedOp

BUCKET_BYTES = 25 << 20
"""Gradients that DistributedDataParallel sends in one piece (its default ``bucket_cap_mb``)."""
REDUCING = "all_reduce reduce broadcast all_gather_into_tensor reduce_scatter_tensor all_to_all_single"
BETWEEN_TWO = "send recv isend irecv"
LISTING = "all_gather all_to_all reduce_scatter scatter gather"


def install_process_groups(session: TraceSession) -> None:
    """Replace process groups by PyTorch's fake one, and record what collectives would send."""
    _replace_data_parallel(session)
    if not torch.distributed.is_available():
        return
    _fake_groups(session)
    for name in (REDUCING + " " + LISTING).split():
        _replace(name, _collective(session, name))
    # Groups stay, as their sizes are read when the script has ended.
    for name in ("barrier", "monitored_barrier", "broadcast_object_list", "destroy_process_group"):
        _replace(name, lambda *_, **__: None)
    torch.distributed.ProcessGroup.monitored_barrier = lambda *_, **__: None
    _replace("all_gather_object", _gather_object)
    for name in BETWEEN_TWO.split():
        _replace(name, _between_two(session, name))
    _replace("batch_isend_irecv", lambda operations: [each.op(each.tensor) for each in operations])
    if torch.distributed.rpc.is_available():
        torch.distributed.rpc.init_rpc = _refuse_calls
    session.after_backward.append(partial(_count_missing_weights, session))
    _wrap_modules(session)
    after_import("torch.distributed.tensor._sharding_prop", _propagate_alone)
    after_import("torch.distributed.tensor._api", _show_device)
    after_import("torch.distributed.pipelining.stage", _refuse_pipelines)
    # The storage of sharded parameters is filled for a layer's use and emptied after it.
    call_after(torch.UntypedStorage, "resize_", lambda _, storage, size: session.recorder.resize(storage._cdata, size))


def _propagate_alone(module: Any) -> None:
    """Let sharded tensors infer the shapes of results with PyTorch's tensors without data, outside the trace."""
    kind = module.ShardingPropagator
    propagate = kind._propagate_tensor_meta_non_cached

    def propagate_alone(*args: Any) -> Any:
        fake_tensors.NESTING[0] += 1
        try:
            with _disable_current_modes():
                return propagate(*args)
        finally:
            fake_tensors.NESTING[0] -= 1

    kind._propagate_tensor_meta_non_cached = propagate_alone


def _show_device(module: Any) -> None:
    """Let sharded tensors show the device that their part shows."""
    module.DTensor.device = property(lambda tensor: tensor._local_tensor.device)
    module.DTensor.is_cuda = property(lambda tensor: tensor._local_tensor.is_cuda)


def _refuse_calls(*_: Any, **__: Any) -> None:
    raise ScriptFailure(
        "the script trains by calls of other processes (torch.distributed.rpc), which one rank cannot show: trace a "
        "script that trains the same model in one process, and give --gpus"
    )


def _refuse_pipelines(module: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ScriptFailure(
            "the script trains in pipeline stages, which the first rank does not stand for: estimate the model's "
            "config.json with --pipeline-parallel instead"
        )

    module._PipelineStageBase.__init__ = refuse


def _shard_on_cuda() -> None:
    """Let FSDP read a device number as ``cuda``: PyTorch takes it for the spare device slot."""
    utilities: Any = importlib.import_module("torch.distributed.fsdp._init_utils")
    requested_device, compute_device = utilities._get_device_from_device_id, utilities._get_compute_device
    utilities._get_device_from_device_id = lambda *args, **kwargs: _as_cuda(requested_device(*args, **kwargs))
    utilities._get_compute_device = lambda module, ignored, _, *arguments: _as_cuda(
        compute_device(module, ignored, None, *arguments)
    )


def _synced_batch_norm(
    session: TraceSession, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float, momentum: float,
    _: Any, ranks: int,
) -> Any:  # fmt: skip
    """Normalize the batch of one rank, and send its statistics forward and backward, as over all ranks."""
    channels = x.shape[1]
    _record_bytes(session, "all_gather_into_tensor", 4 * ranks * (2 * channels + 1), torch.float32, ranks)
    out = torch.nn.functional.batch_norm(x, mean, variance, weight, bias, True, momentum, eps)
    if out.requires_grad:
        out.register_hook(lambda _: _record_bytes(session, "all_reduce", 8 * channels, torch.float32, ranks))
    return out


def _as_cuda(device: Any) -> Any:
    return fake_tensors.CUDA if device is not None and device.type == fake_tensors.backend() else device


def _replace(name: str, replacement: Any) -> None:
    """Replace a function of ``torch.distributed`` in all of its modules: some hold it under a name of their own."""
    original = getattr(torch.distributed, name, None) or getattr(torch.distributed.distributed_c10d, name, None)
    for module in [module for key, module in sys.modules.items() if key.startswith("torch.distributed")]:
        for alias in [alias for alias, value in vars(module).items() if value is original is not None]:
            setattr(module, alias, replacement)


NO_RANK = (
    "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"
)
"""What PyTorch says to a script that is started without a launcher and gives no rank."""


def _fake_groups(session: TraceSession) -> None:
    original = torch.distributed.init_process_group

    def init(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: Any = -1, rank: Any = -1,
        store: Any = None, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if torch.distributed.is_initialized():
            return
        query = dict(parse_qsl(urlparse(str(init_method or "")).query))
        size = first_number(world_size, query.get("world_size"), os.environ.get("WORLD_SIZE"), session.world_size)
        place = first_number(rank, query.get("rank"), os.environ.get("RANK"), 0)
        is_told = {rank, query.get("rank"), os.environ.get("RANK")} - {None, -1}
        if not is_told and store is None and str(init_method or "env://") == "env://" and backend != "mpi":
            raise ValueError("env:// rendezvous: environment variable RANK expected, but not set: start with torchrun")
        session.world_size = max(size, 1)
        session.local_size = min(max(session.local_size, 1), session.world_size)
        original(
            backend="fake", rank=min(place, session.world_size - 1), world_size=session.world_size, store=FakeStore()
        )
        if session.world_size > 1:
            _shard_on_cuda()
            torch.nn.modules.batchnorm.sync_batch_norm = SimpleNamespace(apply=partial(_synced_batch_norm, session))

    class LocalStore(torch.distributed.HashStore):
        """A store of this process, in place of one that listens on a port."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

    _replace("init_process_group", init)
    _replace("TCPStore", LocalStore)
    _replace("is_nccl_available", lambda: True)
    new_group = torch.distributed.new_group

    def split(parent_pg: Any = None, split_ranks: Any = (), *_: Any, **__: Any) -> Any:
        rank, members = torch.distributed.get_rank(parent_pg), torch.distributed.get_process_group_ranks(parent_pg)
        part = next((part for part in split_ranks if rank in part), None)
        return None if part is None else new_group([members[each] for each in part], backend="fake")

    _replace("new_group", lambda ranks=None, *_, **__: new_group(ranks, backend="fake"))
    if hasattr(torch.distributed, "split_group"):  # since 2.5
        _replace("split_group", split)


def _collective(session: TraceSession, name: str) -> Any:
    """Return a replacement that records one collective. Its size is that of its largest tensor."""

    def call(*args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        tensors = [getattr(tensor, "_local_tensor", tensor) for _, tensor in argument_tensors(args, kwargs)]
        tensors = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
        outside = torch.distributed.GroupMember.NON_GROUP_MEMBER  # then nothing is sent
        if tensors and not any(value is outside for value in (*args, *kwargs.values())):
            size = max(tensor.numel() * tensor.element_size() for tensor in tensors)
            _record_bytes(session, name, size, tensors[0].dtype, _ranks(session, (*args, *kwargs.values())))
        return SimpleNamespace(wait=lambda *_: True, is_completed=lambda: True) if async_op else None

    return call


def _between_two(session: TraceSession, name: str) -> Any:
    """Return a replacement that records one transfer between this rank and another."""

    def call(tensor: Any, *_: Any, **__: Any) -> Any:
        session.low_confidence = True
        session.note("the script sends tensors from rank to rank: the first was traced, and others may take longer")
        _record_bytes(session, name, tensor.numel() * tensor.element_size(), tensor.dtype, 2)
        return SimpleNamespace(wait=lambda *_: True, is_completed=lambda: True) if name.startswith("i") else None

    return call


def _ranks(session: TraceSession, values: Iterable[Any]) -> int:
    """Return the number of processes in the group of a collective with these arguments."""
    groups = [value for value in values if isinstance(value, torch.distributed.ProcessGroup)]
    return groups[0].size() if groups else session.world_size


def _record_bytes(session: TraceSession, name: str, size: int, dtype: torch.dtype, ranks: int) -> None:
    traffic = {"flops": 0.0, "bytes_read": size, "bytes_written": size}
    extra = {"kind": "communication", "dims": {"bytes": size, "ranks": ranks}, **traffic}
    spec = ((size // dtype.itemsize,), dtype, -1, size)
    session.recorder.append(RecordedOp(f"c10d.{name}", session.recorder.stage, (spec,), (spec,), (), (), extra))


def collective_dims(op: RecordedOp, session: TraceSession) -> Dict[str, int]:
    """Return the dims of a collective that PyTorch issued itself: the bytes of its largest tensor, and the ranks."""
    size = max((spec[3] for spec in (*op.inputs, *op.outputs)), default=0)
    # An op holds its process group in a box, or the name of the group as its last text.
    boxes = [value for value in op.args if isinstance(value, torch.ScriptObject)]
    is_group = ["ProcessGroup" in str(box._type()) for box in boxes]
    groups = [torch.distributed.ProcessGroup.unbox(box) for box in itertools.compress(boxes, is_group)]
    names = [value for value in op.args if isinstance(value, str)]
    if names and not groups:
        groups = [torch.distributed.distributed_c10d._resolve_process_group(names[-1])]
    return {"bytes": size, "ranks": _ranks(session, groups)}


def _gather_object(objects: List[Any], own_object: Any, *_: Any, **__: Any) -> None:
    objects[:] = [own_object] * len(objects)


def _totals(sizes: Iterable[Tuple[torch.dtype, int]]) -> Dict[torch.dtype, int]:
    totals: Dict[torch.dtype, int] = collections.Counter()
    for dtype, size in sizes:
        totals[dtype] += size
    return totals


def _buckets(session: TraceSession, module: Any, ranks: int) -> List[torch.Tensor]:
    """Return the buckets in which DDP holds all gradients once more to send them, in the formats of their weights."""
    if ranks < 2 or session.policy != "cuda":
        return []
    trained = [weight for weight in module.parameters() if weight.requires_grad and isinstance(weight, FakeTensor)]
    sizes = _totals((weight.dtype, weight.numel()) for weight in trained)
    buckets = [fake_tensors.empty_tensor((count,), dtype, fake_tensors.gpu_device()) for dtype, count in sizes.items()]
    for bucket in buckets:
        session.recorder.track(bucket, "gradient")
    return buckets


def _replace_data_parallel(session: TraceSession) -> None:
    class DataParallel(_DataParallel):
        def __init__(self, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
            super().__init__(session, module, device_ids, dim)

    torch.nn.DataParallel = torch.nn.parallel.DataParallel = DataParallel


class _DataParallel(torch.nn.Module):
    """The wrapped module on the first of its GPUs, which gathers the outputs of all."""

    def __init__(self, session: TraceSession, module: Any, device_ids: Any, dim: int) -> None:
        super().__init__()
        self.module, self.dim, self.__dict__["_session"] = module, dim, session
        self.device_ids = list(device_ids or range(session.local_size))
        self.ranks = len(self.device_ids) if session.policy == "cuda" else 1
        session.world_size = max(session.world_size, self.ranks)
        session.note(f"nn.DataParallel splits each batch among the {self.ranks} GPUs that it has: the first was traced")
        session.after_backward.append(self._sum_gradients)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.ranks == 1:
            return self.module(*args, **kwargs)
        args, kwargs = tree_map(self._first_part, (args, kwargs))
        if torch.is_grad_enabled():
            parts = [part for part in tree_leaves((args, kwargs)) if self._is_split(part)]
            self._session.facts.update({"batch": parts[0].shape[self.dim]} if parts else {})
        self._send("broadcast", self.parameters())
        return tree_map(self._gather, self.module(*args, **kwargs))

    def _is_split(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dim() > self.dim

    def _first_part(self, value: Any) -> Any:
        return value.to("cuda").chunk(self.ranks, self.dim)[0] if self._is_split(value) else value

    def _gather(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.cat([value if value.dim() else value.view(1)] * self.ranks, self.dim)

    def _sum_gradients(self) -> None:
        if self.ranks > 1:
            self._session.recorder.stage = "backward"
            self._send("reduce", [weight.grad for weight in self.parameters() if weight.grad is not None])
            self._session.recorder.stage = "forward"

    def _send(self, name: str, tensors: Iterable[Any]) -> None:
        sizes = _totals((tensor.dtype, tensor.numel() * tensor.element_size()) for tensor in tensors)
        for dtype, size in sizes.items():
            _record_bytes(self._session, name, size, dtype, self.ranks)


def _count_missing_weights(session: TraceSession) -> None:
    """Count the parameters of the whole model that other ranks hold."""
    parameters = {id(weight): weight for ref in session.recorder.parameters if (weight := ref()) is not None}
    missing = 0
    for weight in parameters.values():
        memory = session.recorder.live.get(getattr(weight, "_local_tensor", weight).untyped_storage()._cdata)
        if memory is None or not memory[1]:
            continue  # a gathered weight, whose memory was freed
        if hasattr(weight, "_local_tensor"):
            missing += weight.numel() - weight._local_tensor.numel()
        elif hasattr(weight, "_sharded_size"):  # a flat parameter, whose shards are padded to the same size
            missing += max(sum(weight._numels) - weight._sharded_size.numel(), 0)
    session.missing_parameters = missing


def _wrap_modules(session: TraceSession) -> None:  # noqa: C901 - one class, which needs its session
    class DistributedDataParallel(torch.nn.Module):
        """The wrapped module. Its gradients are summed over all ranks in buckets after the backward pass."""

        def __init__(self, module: Any, device_ids: Any = None, *_: Any, **settings: Any) -> None:
            super().__init__()
            self.module, self.device_ids, self.output_device, self.dim = module, device_ids, None, 0
            self.process_group, self.logger = settings.get("process_group"), None
            group = settings.get("process_group") or settings.get("device_mesh")
            self.ranks = group.size() if group is not None else session.world_size
            for name in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view"):
                setattr(self, name, bool(settings.get(name)))
            self.__dict__["_buckets"] = [] if self.gradient_as_bucket_view else _buckets(session, module, self.ranks)
            self.require_backward_grad_sync, self.expects_gradients = True, False
            session.after_backward.append(self._sum_gradients)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if self.device_ids and session.policy == "cuda":  # then it moves what it is given to its device
                moved, named = torch.distributed.utils._to_kwargs(args, kwargs, fake_tensors.CUDA, False)
                args, kwargs = moved[0] if moved else (), named[0] if named else {}
            out = self.module(*args, **kwargs)
            if torch.is_grad_enabled():
                tensors = [tensor for tensor in result_tensors(out) if tensor.requires_grad]
                for tensor in tensors:
                    tensor.register_hook(self._expect_gradients)
                if not tensors:
                    self._expect_gradients()
            return out

        def _expect_gradients(self, *_: Any) -> None:
            """Remember that a backward pass comes through this module, as not each of them does."""
            self.expects_gradients = True

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            self.require_backward_grad_sync = False
            try:
                yield
            finally:
                self.require_backward_grad_sync = True

        def join(self, *_: Any, **__: Any) -> Any:
            return contextlib.nullcontext()

        def register_comm_hook(self, *_: Any, **__: Any) -> None:
            session.note("the DDP communication hook is not traced")

        def _get_ddp_logging_data(self) -> Dict[str, Any]:
            return {}

        def _set_static_graph(self) -> None:
            """Do nothing: the graph is traced as it runs."""

        def _sum_gradients(self) -> None:
            if not self.require_backward_grad_sync or self.ranks < 2 or not self.expects_gradients:
                return
            self.expects_gradients = False
            gradients = [weight.grad for weight in self.module.parameters() if weight.grad is not None]
            sizes = _totals((grad.dtype, grad.numel() * grad.element_size()) for grad in gradients)
            session.recorder.stage = "backward"
            for dtype, total in sizes.items():
                for sent in range(0, total, BUCKET_BYTES):
                    _record_bytes(session, "all_reduce", min(BUCKET_BYTES, total - sent), dtype, self.ranks)
            session.recorder.stage = "forward"

    # A checkpoint of the module is loaded by this name.
    DistributedDataParallel.__module__ = "torch.nn.parallel.distributed"
    DistributedDataParallel.__qualname__ = "DistributedDataParallel"
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel

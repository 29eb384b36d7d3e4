"""Sparse matrices without data: their indices and values are tensors without data, and their products are ops."""

import functools
import math
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.kernels import SparseProduct, is_fake, kernels
from leadline.graphs.torch.worker.session import ScriptFailure, TraceSession


class SparseMatrix(torch.Tensor):
    """A sparse matrix on the simulated device.

    ``parts`` are its indices: one tensor of shape (2, entries) in the coordinate format (COO), the offsets of rows and
    the columns in the compressed format (CSR).
    """

    parts: List[Any]
    entries: Any
    note: Callable[[str], None]

    @staticmethod
    def __new__(cls: Any, parts: List[Any], values: Any, shape: Any, layout: Any = torch.sparse_coo) -> Any:  # noqa: D102
        device = fake_tensors.true_device(values)
        return torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=values.dtype, device=device)

    def __init__(self, parts: List[Any], values: Any, shape: Any, layout: Any = torch.sparse_coo) -> None:
        self.parts, self.entries, self.format = parts, values, layout

    def __tensor_flatten__(self) -> Any:
        return ["entries"], (self.parts, tuple(self.shape), self.format)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, *_: Any) -> Any:
        parts, shape, layout = context
        return SparseMatrix(parts, inner["entries"], shape, layout)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = HANDLERS.get(getattr(func, "__name__", ""))
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in ("detach", "alias", "clone", "_to_copy"):
            source, moved = args[0], kwargs or {}
            device = {"device": moved["device"]} if moved.get("device") is not None else {}
            parts = [part.to(**device) if device else part for part in source.parts]
            return _like(source, func(source.entries, *args[1:], **moved), parts)
        raise ScriptFailure(f"{func} of a sparse tensor cannot be traced")

    @property
    def layout(self) -> Any:
        """Return the format."""
        return self.format

    @property
    def device(self) -> Any:
        """Return the device of the values."""
        return self.entries.device

    @property
    def is_sparse(self) -> bool:
        """Return whether the format is COO."""
        return self.format is torch.sparse_coo

    @property
    def is_cuda(self) -> bool:
        """Return whether it is on the simulated GPU."""
        return bool(self.entries.is_cuda)

    @property
    def is_sparse_csr(self) -> bool:
        """Return whether the format is CSR."""
        return self.format is torch.sparse_csr

    def __repr__(self, **_: Any) -> str:
        return f"tensor(shape={tuple(self.shape)}, nnz={self._nnz()}, layout={self.format})"

    def _nnz(self) -> int:
        return int(self.entries.shape[0])

    def _values(self) -> Any:
        return self.entries

    def _indices(self) -> Any:
        return self.parts[0] if self.is_sparse else torch.stack([self.parts[1], self.parts[1]])

    def is_coalesced(self) -> bool:
        """Return true: no place is assumed to occur twice."""
        return True

    def coalesce(self) -> Any:
        """Return the matrix itself."""
        return self

    values, indices = _values, _indices

    def crow_indices(self) -> Any:
        """Return the offsets of rows."""
        return self.parts[0]

    def col_indices(self) -> Any:
        """Return the columns."""
        return self.parts[-1]

    def to_sparse(self, *_: Any, **__: Any) -> Any:
        """Return the matrix in the COO format."""
        return SparseMatrix([self._indices()], self.entries, self.shape)

    to_sparse_coo = to_sparse

    def to_sparse_csr(self, *_: Any, **__: Any) -> Any:
        """Return the matrix in the CSR format."""
        columns = self.parts[-1] if self.is_sparse_csr else self.parts[0][1].clone()
        return SparseMatrix([columns.new_empty(self.shape[0] + 1), columns], self.entries, self.shape, torch.sparse_csr)

    def to_dense(self, *_: Any, **__: Any) -> Any:
        """Return a dense matrix."""
        rows, columns = self._indices()
        return self.entries.new_zeros(self.shape).index_put((rows, columns), self.entries, accumulate=True)


def _like(source: SparseMatrix, values: Any, parts: Any = None) -> SparseMatrix:
    return SparseMatrix(parts or source.parts, values, source.shape, source.format)


def _product(left: Any, right: Any, *_: Any, **__: Any) -> Any:
    if not isinstance(left, SparseMatrix):
        return _product(_transposed(right), left.t()).t()
    if isinstance(right, SparseMatrix):
        return _sparse_product(left, right)
    dense = right if right.dim() > 1 else right.unsqueeze(1)
    out = SparseProduct.apply(left.entries, dense, left.parts, left.shape[0])
    return out if right.dim() > 1 else out.squeeze(1)


def _sparse_product(left: SparseMatrix, right: SparseMatrix) -> SparseMatrix:
    """Return the product of two sparse matrices whose entries are spread evenly: its size depends on the data."""
    places = left.shape[0] * right.shape[1]
    pairs = math.ceil(left._nnz() * right._nnz() / left.shape[1])
    entries = min(pairs, math.ceil(places * -math.expm1(-pairs / places)))
    place = functools.partial(left.entries.new_empty, dtype=torch.int64)
    products = left.entries[place(pairs)] * right.entries[place(pairs)]
    values = products.new_zeros(entries).index_add(0, place(pairs), products)
    left.note(f"the size of a product of two sparse tensors depends on the data: {entries:,} elements were assumed")
    product = SparseMatrix([place((2, entries))], values, (left.shape[0], right.shape[1]))
    return product.to_sparse_csr() if left.is_sparse_csr else product


def _transposed(matrix: SparseMatrix, *_: Any) -> SparseMatrix:
    return SparseMatrix(matrix.parts, matrix.entries, tuple(reversed(matrix.shape)), matrix.format)


def _add_product(start: Any, left: Any, right: Any, *, beta: float = 1, alpha: float = 1, **_: Any) -> Any:
    return torch.add(start * beta if beta != 1 else start, _product(left, right), alpha=alpha)


def _row_sums(matrix: SparseMatrix, dim: Any = None, *_: Any, **__: Any) -> Any:
    if dim is None:
        return matrix.entries.sum()
    oriented = matrix if dim in (1, -1, [1], (1,)) else _transposed(matrix)
    return _product(oriented, matrix.entries.new_ones(oriented.shape[1]))


def _scaled(operation: Callable[..., Any]) -> Callable[..., Any]:
    def scale(left: Any, right: Any, *_: Any, **__: Any) -> Any:
        matrix, other = (left, right) if isinstance(left, SparseMatrix) else (right, left)
        if isinstance(other, torch.Tensor) and other.dim():
            raise ScriptFailure("a sparse tensor times a dense one cannot be traced: scale its values()")
        return _like(matrix, operation(matrix.entries, other))

    return scale


HANDLERS: Dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mm", "spmm", "matmul", "__matmul__", "_sparse_mm", "mv"), _product),
    **dict.fromkeys(("addmm", "_sparse_addmm", "sspaddmm"), _add_product),
    **dict.fromkeys(("__rmatmul__",), lambda right, left: _product(left, right)),
    **dict.fromkeys(("t", "transpose", "numpy_T"), _transposed),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), _scaled(torch.mul)),
    **dict.fromkeys(("div", "__truediv__", "divide"), _scaled(torch.div)),
    **dict.fromkeys(("sum", "_sparse_sum"), _row_sums),
}
"""Functions of PyTorch on sparse matrices, by their names."""


def without_data(tensor: torch.Tensor, device: torch.device) -> Any:
    """Return a sparse tensor with data as one without, on ``device``.

    Raises:
        ScriptFailure: It is no matrix in the coordinate or the compressed format.
    """
    if tensor.layout not in (torch.sparse_coo, torch.sparse_csr) or tensor.dim() != 2:
        raise ScriptFailure(f"a sparse tensor of {tensor.dim()} dimensions in the layout {tensor.layout} "
                                  "cannot be traced: use a matrix in the COO or CSR format")  # fmt: skip
    is_coo = tensor.layout is torch.sparse_coo
    parts = [tensor._indices()] if is_coo else [tensor.crow_indices(), tensor.col_indices()]
    values = tensor._values() if is_coo else tensor.values()
    parts = [fake_tensors.empty_like(part, device) for part in parts]
    return SparseMatrix(parts, fake_tensors.empty_like(values, device), tensor.shape, tensor.layout)


PRODUCTS = {"mm": 0, "_sparse_addmm": 1, "addmm": 1, "mv": 0}
"""Products that take a sparse matrix with data, and its position among their arguments."""


def without_data_in(name: str, args: Tuple[Any, ...]) -> Any:
    """Return the op and its arguments for a product of a sparse matrix with data, which the CPU keeps, or ``None``."""
    place = PRODUCTS.get(name)
    if place is None or args[place].layout is torch.strided:
        return None
    matrix = without_data(args[place], torch.device("cpu"))
    return kernels.spmm.default, (matrix.parts, matrix.entries, matrix.shape[0], args[place + 1])


def install_sparse_matrices(session: TraceSession) -> None:
    """Let constructors and conversions make sparse matrices without data from tensors without data."""
    SparseMatrix.note = staticmethod(session.note)
    torch.sparse_coo_tensor = _constructor(torch.sparse_coo_tensor, ("indices", "values"), torch.sparse_coo)
    compressed = ("crow_indices", "col_indices", "values")
    torch.sparse_csr_tensor = _constructor(torch.sparse_csr_tensor, compressed, torch.sparse_csr)
    for name in ("to_sparse", "to_sparse_coo"):
        setattr(torch.Tensor, name, _conversion(getattr(torch.Tensor, name)))


def _conversion(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def convert(tensor: Any, *args: Any, **settings: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return original(tensor, *args, **settings)
        indices = torch.nonzero(tensor).t()
        return SparseMatrix([indices], tensor[tuple(indices)], tensor.shape)

    return convert


def _constructor(original: Callable[..., Any], names: Tuple[str, ...], layout: Any) -> Callable[..., Any]:
    """Wrap a constructor from tensors with these ``names``, the last of which are the values."""
    count = len(names)

    def construct(*args: Any, device: Any = None, **settings: Any) -> Any:
        args = (*args, *(settings.pop(name) for name in names[len(args) :] if name in settings))
        target = fake_tensors.map_device(None if device is None else torch.device(device))
        on_gpu = target is not None and target.type == fake_tensors.backend()
        if not is_fake(*args):
            return (
                without_data(original(*args, **settings), target)
                if on_gpu
                else original(*args, device=device, **settings)
            )
        size = settings.get("size", args[count] if len(args) > count else None)
        if size is None:
            raise ScriptFailure("a sparse tensor needs its size in a trace: its indices have no values")
        *parts, values = (torch.as_tensor(part, device=device) for part in args[:count])
        return SparseMatrix(parts, values.to(settings.get("dtype") or values.dtype), size, layout)

    return construct

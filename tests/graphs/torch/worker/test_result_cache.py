import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from leadline.graphs.torch.worker import fake_tensors
from leadline.graphs.torch.worker.ops import ResultCache

aten = torch.ops.aten
CPU = torch.device("cpu")


def fake(*shape, dtype=torch.float32, stride=None):
    return fake_tensors.empty_tensor(shape, dtype, CPU, stride)


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else [element for element in value or () if element is not None]


def likeness(args, out):
    """Return all that a later op could ask of a result: sizes, layout, type, and whose memory it shares."""
    arguments = [tensor for arg in args for tensor in (arg if isinstance(arg, (list, tuple)) else [arg])]
    owners = [tensor.untyped_storage()._cdata for tensor in arguments if isinstance(tensor, torch.Tensor)]
    described = []
    for tensor in tensors(out):
        key = tensor.untyped_storage()._cdata
        owner = owners.index(key) if key in owners else None
        layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        described.append((*layout, tensor.dtype, tensor.device, owner, tensor.untyped_storage().nbytes()))
    return described


CALLS = {
    "a product": (aten.mm.default, lambda: (fake(4, 8), fake(8, 16))),
    "a broadcast sum": (aten.add.Tensor, lambda: (fake(4, 1, 8), fake(3, 8))),
    "a sum with a whole number": (aten.add.Tensor, lambda: (fake(4, dtype=torch.int64), 1)),
    "a sum with a fraction": (aten.add.Tensor, lambda: (fake(4, dtype=torch.int64), 1.5)),
    "a transposed view": (aten.t.default, lambda: (fake(4, 8),)),
    "a slice further on": (aten.slice.Tensor, lambda: (fake(6, 8), 0, 2, 5)),
    "a slice of a slice": (aten.slice.Tensor, lambda: (aten.slice.Tensor(fake(9, 8), 0, 3), 0, 1)),
    "an expanded view": (aten.expand.default, lambda: (fake(1, 8), [5, 8])),
    "pieces of one tensor": (aten.split.Tensor, lambda: (fake(9, 4), 3)),
    "a joined list": (aten.cat.default, lambda: ([fake(2, 4), fake(3, 4)], 0)),
    "three results": (aten.native_layer_norm.default, lambda: (fake(4, 8), [8], fake(8), fake(8), 1e-5)),
    "an update in place": (aten.add_.Tensor, lambda: (fake(4, 8), fake(8))),
    "updates of many in place": (aten._foreach_add_.List, lambda: ([fake(4), fake(5)], [fake(4), fake(5)])),
    "many new ones": (aten._foreach_sqrt.default, lambda: ([fake(4), fake(2, 5)],)),
    "a channels-last image": (aten.relu.default, lambda: (fake(2, 3, 4, 4, stride=(48, 1, 12, 3)),)),
    "a reduced precision": (aten._to_copy.default, lambda: (fake(4, 8),)),
}

NEEDLESS = {"updates of many in place"}
"""Calls from which nothing follows, so that nothing is kept of them."""


@pytest.mark.parametrize("name", CALLS)
def test_a_cached_result_is_the_one_that_pytorch_computes(name):
    func, make = CALLS[name]
    cache = ResultCache()
    kwargs = {"dtype": torch.bfloat16} if name == "a reduced precision" else {}
    expected = None
    for _ in range(3):
        args = make()
        expected = likeness(args, fake_tensors.FAKE_MODE.dispatch(func, (FakeTensor,), args, kwargs))
        args = make()
        assert expected == likeness(args, cache.carry_out(func, (FakeTensor,), args, kwargs))
    assert len(cache._recipes) == (0 if name in NEEDLESS else 1)


def test_an_update_in_place_returns_the_same_tensor():
    cache = ResultCache()
    for _ in range(2):
        x = fake(4)
        assert x is cache.carry_out(aten.mul_.Tensor, (FakeTensor,), (x, 2.0), {})


def test_a_fraction_and_a_whole_number_are_not_the_same_argument():
    cache, x = ResultCache(), fake(4, dtype=torch.int64)
    types = [cache.carry_out(aten.add.Tensor, (FakeTensor,), (x, number), {}).dtype for number in (1, 1.0, True)]
    assert [torch.int64, torch.float32, torch.int64] == types


@pytest.mark.parametrize(("func", "args"), [
    (aten.nonzero.default, lambda: (fake(4),)),
    (aten.unsqueeze_.default, lambda: (fake(4), 0)),
    (aten.add.Tensor, lambda: (fake(4), torch.tensor(2.0))),
])  # fmt: skip
def test_ops_that_depend_on_values_or_change_shapes_are_never_cached(func, args):
    cache = ResultCache()
    try:
        cache.carry_out(func, (FakeTensor,), args(), {})
    except torch._subclasses.fake_tensor.DynamicOutputShapeException:
        assert func is aten.nonzero.default
    assert cache._recipes == {}


@pytest.fixture
def default_double():
    """Return how to make double precision the default until the test ends."""
    before = torch.get_default_dtype()
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(before)


@pytest.mark.parametrize(("func", "make"), [
    (aten.add.Tensor, lambda: (fake(4, dtype=torch.int64), 1.5)),
    (aten.div.Tensor, lambda: (fake(4, dtype=torch.int64), fake(4, dtype=torch.int64))),
    (aten.sqrt.default, lambda: (fake(4, dtype=torch.int64),)),
    (aten.full.default, lambda: ([4], 1.0)),
])  # fmt: skip
def test_a_result_follows_a_changed_default_type(func, make, default_double):
    cache = ResultCache()
    assert torch.float32 == cache.carry_out(func, (FakeTensor,), make(), {}).dtype
    default_double()
    assert torch.float64 == cache.carry_out(func, (FakeTensor,), make(), {}).dtype


def constant(value):
    """Return a fake tensor whose value PyTorch knows."""
    return fake_tensors.FAKE_MODE.dispatch(aten.lift_fresh_copy.default, (FakeTensor,), (torch.tensor(value),), {})


def test_a_known_value_is_computed_although_the_op_is_cached():
    cache = ResultCache()
    cache.carry_out(aten.add.Tensor, (FakeTensor,), (fake(dtype=torch.int64), 1), {})
    assert cache.carry_out(aten.add.Tensor, (FakeTensor,), (constant(3), 1), {}).constant.item() == 4


def test_a_known_value_is_forgotten_when_it_is_written_to():
    cache, value = ResultCache(), constant(3)
    cache.carry_out(aten.add_.Tensor, (FakeTensor,), (fake(dtype=torch.int64), 1), {})
    cache.carry_out(aten.add_.Tensor, (FakeTensor,), (value, 1), {})
    assert value.constant is None or value.constant.item() == 4

"""Ops of data-dependent shapes, sparse matrices, and kernels of packages that only run on a GPU."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from leadline.core.errors import Untraceable
from leadline.core.graph import Stage
from tests.support.traced_script import trace_code

EDGES = 3000

GRAPH_NETWORK = """
import torch
from torch import nn
nodes, device = 500, "DEVICE"
places, values = torch.randint(0, nodes, (2, 3000)), torch.rand(3000)
adjacency = torch.sparse_coo_tensor(places, values, (nodes, nodes)).CONVERTED.to(device)
assert adjacency.shape == (500, 500) and adjacency.device.type == device
first, second = nn.Linear(64, 32, bias=False).to(device), nn.Linear(32, 7, bias=False).to(device)
x, y = torch.rand(nodes, 64).to(device), torch.randint(0, 7, (nodes,)).to(device)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
for epoch in range(20):
    hidden = torch.PRODUCT(adjacency, first(x)).relu()
    nn.functional.cross_entropy(torch.PRODUCT(adjacency, second(hidden)), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("converted", "product", "device"),
    [("to_sparse_coo()", "spmm", "cuda"), ("to_sparse_csr()", "sparse.mm", "cuda"), ("to_sparse_coo()", "mm", "cpu")],
)
def test_a_product_with_a_sparse_matrix_computes_two_flops_per_entry_and_column(tmp_path, converted, product, device):
    code = GRAPH_NETWORK.replace("CONVERTED", converted).replace("PRODUCT", product).replace("DEVICE", device)
    job = trace_code(tmp_path, code)
    products = Counter((op.stage, op.flops) for op in job.step.ops if op.name == "leadline.spmm")
    entries = EDGES if "coo" in converted and device == "cuda" else products.most_common()[0][0][1] / 2 / 32
    assert entries == pytest.approx(EDGES, rel=0.02)  # places that occur twice are one entry
    stages, widths = (Stage.FORWARD, Stage.BACKWARD), (32, 7)
    assert products == {(stage, 2 * entries * width): 1 for stage in stages for width in widths}
    assert (job.step.device_type, job.step.parameters, job.loop.epochs) == (device, 64 * 32 + 32 * 7, 20)


@pytest.mark.parametrize(
    "arguments", ["places, values, (count, count)", "indices=places, values=values, size=(count, count)"]
)
def test_learned_values_of_a_sparse_matrix_get_gradients(tmp_path, arguments):
    job = trace_code(
        tmp_path,
        """
        import torch
        places, count = torch.randint(0, 50, (2, 300)).cuda(), 50
        values, dense = (torch.nn.Parameter(torch.rand(*shape)) for shape in ((300,), (50, 8)))
        values, dense = torch.nn.Parameter(values.cuda()), torch.nn.Parameter(dense.cuda())
        optimizer = torch.optim.Adam([values, dense])
        for step in range(9):
            matrix = torch.sparse_coo_tensor(SPARSE)
            (2.0 * matrix @ dense).sum().backward()
            optimizer.step()
        """.replace("SPARSE", arguments),
    )
    flops = {op.name: op.flops for op in job.step.ops if op.name.startswith("leadline.")}
    assert flops == {"leadline.spmm": 2 * 300 * 8, "leadline.sddmm": 2 * 300 * 8}
    assert job.step.parameters == 300 + 50 * 8


def test_a_product_of_two_sparse_matrices_has_entries_that_are_spread_evenly(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        matrix = torch.sparse_coo_tensor(torch.randint(0, 100, (2, 500)), torch.rand(500), (100, 100)).coalesce().cuda()
        weight = torch.nn.Parameter(torch.rand(100, 8).cuda())
        optimizer = torch.optim.Adam([weight])
        for step in range(9):
            ((matrix @ matrix) @ weight).sum().backward()
            optimizer.step()
        """,
    )
    entries = next(op.flops for op in job.step.ops if op.name == "leadline.spmm") / 2 / 8
    assert 1_900 < entries < 2_300  # 25 elements of two matrices meet in each row, over 100 places
    assert any("product of two sparse" in note for note in job.notes)


def test_an_operation_on_sparse_tensors_without_a_rule_is_refused_by_name(tmp_path):
    code = "import torch\nmatrix = torch.eye(9).to_sparse().cuda()\nmatrix.tril()\n"
    with pytest.raises(Untraceable, match=r"aten\.tril\.default of a sparse tensor cannot be traced"):
        trace_code(tmp_path, code)


PACKAGES = """
import torch
from torch import nn
import bitsandbytes
import xformers.ops
from apex.normalization import FusedLayerNorm
from flash_attn import flash_attn_func
from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.flash_attn_interface import flash_attn_varlen_qkvpacked_func
from mamba_ssm import Mamba
try:
    import causal_conv1d
except ImportError:
    causal_conv1d = None
assert causal_conv1d is None

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm, self.scan = nn.Linear(256, 768), FusedLayerNorm(256), Mamba(256)
    def forward(self, x):
        packed = self.qkv(x).unflatten(-1, (3, 4, 64))
        dense = flash_attn_func(*packed.unbind(2), causal=True)
        same = xformers.ops.memory_efficient_attention(*packed.unbind(2))
        rows, places, begins, longest, _ = unpad_input(packed, torch.ones(4, 128, device="cuda", dtype=torch.int32))
        varied = pad_input(flash_attn_varlen_qkvpacked_func(rows, begins, longest), places, 4, 128)
        return self.scan(self.norm((dense + same + varied).flatten(2)))

net = Net().cuda().bfloat16()
optimizer = bitsandbytes.optim.AdamW8bit(net.parameters(), lr=1e-3)
for step in range(50):
    net(torch.rand(4, 128, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_packages_for_gpus_that_are_missing_are_traced_by_their_kernels(tmp_path):
    job = trace_code(tmp_path, PACKAGES)
    forward = [op for op in job.step.ops if op.stage is Stage.FORWARD]
    attention = 4 * 4 * 4 * 128 * 128 * 64  # 4 flops per query, key and channel of batch × heads
    assert [op.flops for op in forward if op.kind == "attention"] == [attention / 2, attention, attention]
    assert [op.flops for op in forward if op.name == "leadline.selective_scan"] == [9 * 4 * 512 * 128 * 16]
    assert sum(op.name == "leadline.selective_scan_backward" for op in job.step.ops) == 1
    state_bytes = sum(event.size_bytes for event in job.step.events if event.category == "optimizer-state")
    assert state_bytes == pytest.approx(2 * job.step.parameters * (1 + 4 / 256), rel=0.05)
    assert job.loop.optimizer == "adamw8bit"
    assert job.low_confidence
    replaced = [note.partition(" is ")[0] for note in job.notes if "a stand-in computes" in note]
    assert replaced == ["bitsandbytes", "xformers", "apex", "flash_attn", "mamba_ssm"]
    assert "causal_conv1d is not installed here, so the script goes on without it" in job.notes


def test_a_package_that_fails_without_a_gpu_is_replaced_and_a_working_one_is_not(tmp_path, monkeypatch):
    broken, working = tmp_path / "libraries/flash_attn", tmp_path / "libraries/apex"
    for folder, code in ((broken, "raise OSError('libcuda.so.1: cannot open')"), (working, "import torch\nmine = 7")):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "libraries"))
    code = """
        import importlib.util
        import torch
        import apex
        from flash_attn import flash_attn_qkvpacked_func
        assert apex.mine == 7 and not importlib.util.find_spec("xformers")
        layer = torch.nn.Linear(64, 3 * 64).cuda().half()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        for step in range(9):
            qkv = layer(torch.rand(2, 16, 64, device="cuda").half()).unflatten(-1, (3, 1, 64))
            flash_attn_qkvpacked_func(qkv).sum().backward()
            optimizer.step()
    """
    job = trace_code(tmp_path, code)
    assert sum(op.kind == "attention" for op in job.step.ops) == 2
    notes = [note.partition(":")[0] for note in job.notes if "stand-in" in note]
    assert notes == ["flash_attn is not usable here (OSError)"]


QUANTIZED = """
import torch, bitsandbytes as bnb
from bitsandbytes.nn import Linear8bitLt
net = torch.nn.Sequential(
    torch.nn.Linear(256, 256),
    bnb.nn.Linear4bit(256, 512, compute_dtype=torch.bfloat16, quant_type="nf4"),
    Linear8bitLt(512, 128, has_fp16_weights=False),
).cuda()
assert net[1].weight.shape == (256 * 512 // 2, 1) and net[1].weight.dtype == torch.uint8
optimizer = bnb.optim.PagedAdamW([weight for weight in net.parameters() if weight.requires_grad], lr=1e-3)
for step in range(9):
    net(torch.rand(32, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_layers_with_packed_weights_expand_them_in_each_direction(tmp_path):
    job = trace_code(tmp_path, QUANTIZED)
    products = sorted(op.flops for op in job.step.ops if op.kind == "gemm")
    first, second, third = 2 * 32 * 256 * 256, 2 * 32 * 256 * 512, 2 * 32 * 512 * 128
    assert products == sorted([first, first, second, second, third, third])  # no gradient of packed weights
    written = [op.bytes_written for op in job.step.ops if op.name == "leadline.dequantize"]
    assert sorted(written) == [4 * 512 * 128, 4 * 512 * 128, 2 * 256 * 512, 2 * 256 * 512]
    held = {event.size_bytes for event in job.step.events if event.op == 0}
    assert {256 * 512 // 2, 4 * 256 * 512 // 64, 512 * 128, 4 * 128} <= held
    assert any(note.startswith("bitsandbytes is ") for note in job.notes)


APEX = """
import torch
from apex import amp
from apex.optimizers import FusedAdam
from apex.parallel import DistributedDataParallel, convert_syncbn_model
model = convert_syncbn_model(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32))).cuda()
model, optimizer = amp.initialize(model, FusedAdam(model.parameters()), opt_level="O1")
torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:2345", world_size=2, rank=0)
model = DistributedDataParallel(model, delay_allreduce=True)
for step in range(9):
    optimizer.zero_grad()
    with amp.scale_loss(model(torch.rand(8, 64).cuda()).sum(), optimizer) as scaled:
        scaled.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
"""


def test_amp_and_data_parallelism_of_apex_are_those_of_pytorch(tmp_path):
    job = trace_code(tmp_path, APEX)
    assert {op.dtype for op in job.step.ops if op.kind == "gemm"} == {"float16"}
    sent = [(op.dims["bytes"], op.dims["ranks"]) for op in job.step.ops if op.name == "c10d.all_reduce"]
    assert (4 * (64 * 32 + 3 * 32), 2) in sent
    assert job.loop.optimizer == "fusedadam"


def test_lbfgs_runs_all_its_iterations_with_a_note(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(64, 16).cuda()
        optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=6, line_search_fn="strong_wolfe")
        def closure():
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            return loss
        for step in range(9):
            optimizer.step(closure)
        """,
    )
    assert sum(op.name == "aten.addmm" for op in job.step.ops) == 7  # one before the iterations
    assert "LBFGS is assumed to run 6 iterations a step, each with one call of the closure" in job.notes
    assert job.loop.steps_per_epoch == 9


def test_a_list_of_images_is_a_batch_and_a_part_of_a_tensor_is_copied_without_gaps(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        from torch import nn
        ids = torch.arange(200).view(10, 20)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.filters, self.table = nn.Conv2d(3, 4, 3), nn.Embedding(200, 8)
            def forward(self, images, words):
                assert words[0].tolist() == [3, 4, 5, 6]
                seen = torch.stack([self.filters(image[None]).sum() for image in images])
                return seen.sum() + self.table(words).sum()
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(9):
            net([torch.rand(3, 8, 8 + n).cuda() for n in range(5)], ids[:, 3:7].to("cuda")).backward()
            optimizer.step()
        """,
    )
    assert (job.loop.batch, job.loop.steps_per_epoch) == (5, 9)
    assert job.step.parameters == 3 * 4 * 9 + 4 + 200 * 8


def test_classes_may_be_bytes_and_chosen_places_are_distinct_on_the_host(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        net = torch.nn.Linear(6, 12).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        classes = torch.zeros(8, dtype=torch.uint8).cuda()
        for step in range(9):
            scores = net(torch.rand(8, 6).cuda())
            periods = 12 // torch.topk(scores.mean(0), 3)[1].detach().cpu().numpy()
            folded = scores.reshape(8, -1, int(periods[1])).sum()
            (folded + torch.nn.functional.cross_entropy(scores, classes)).backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 84
    assert job.loop.steps_per_epoch == 9


def test_files_are_loaded_onto_the_device_that_they_name_or_are_asked_for(tmp_path):
    torch.save({"layer": [torch.full((3, 2), 5.0)]}, tmp_path / "host.pt")
    job = trace_code(
        tmp_path,
        """
        import torch
        assert not torch.load("host.pt")["layer"][0].is_cuda
        weight = torch.load("host.pt", map_location=torch.device("cuda", 0))["layer"][0]
        assert weight.is_cuda and torch.load("host.pt", {"cpu": "cuda:0"})["layer"][0].is_cuda
        assert weight[0].tolist() == [5, 5]
        weight = torch.nn.Parameter(weight)
        optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9, fused=True)
        for step in range(9):
            (torch.rand(4, 3).cuda() @ weight).sum().backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 6
    assert any(op.name == "aten._fused_sgd_" for op in job.step.ops)


def test_what_a_script_checks_of_its_data_is_true(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(6, 4)
                counts = torch.ones(2000)
                self.edges = torch.sparse_coo_tensor(torch.arange(4000).view(2, -1) % 6, counts, (6, 6)).coalesce()
                assert self.edges.values().sum() == 2000
        net = Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        times = torch.linspace(0, 1, 5).cuda()
        assert (times[1:] > times[:-1]).all()
        for step in range(9):
            scores = net.layer(torch.rand(64, 6).cuda())
            if len(torch.unique(scores.argmax(1))) > 4:
                raise ValueError("more classes than scores")
            rows, columns = torch.nonzero(scores > 0, as_tuple=True)
            if len(torch.unique(columns)) > 4 or len(torch.unique(columns * 64 + rows)) > 64 * 4:
                raise ValueError("more columns than scores")
            scores.sum().backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 28


def test_a_convolution_keeps_the_format_channels_last(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        net = torch.nn.Conv2d(4, 6, 3, groups=2).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        images = torch.rand(2, 8, 8, 4).permute(0, 3, 1, 2).cuda()
        for step in range(9):
            out = net(images)
            assert out.stride() == (216, 1, 36, 6)
            assert net(images.contiguous()).is_contiguous()
            out.sum().backward()
            optimizer.step()
        """,
    )
    assert job.loop.steps_per_epoch == 9


def test_a_view_of_what_a_mask_selects_tells_its_size(tmp_path):
    job = trace_code(
        tmp_path,
        """
        import torch
        net = torch.nn.Linear(16, 16).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        images = torch.rand(2, 3, 6, 6, device="cuda")
        for step in range(9):
            x = net(torch.rand(8, 16).cuda())
            mask = torch.eye(8, device="cuda").bool()
            others = (x @ x.t())[~mask].view(8, 7)
            cropped = torch.masked_select(images, images > 0.5).view(
                images.shape[0], images.size(1), 4, 4
            )
            (torch.nn.functional.conv2d(cropped, torch.ones(5, 3, 3, 3).cuda()).sum() + others.sum()).backward()
            optimizer.step()
        """,
    )
    (convolution,) = (op for op in job.step.ops if op.name == "aten.convolution")
    assert convolution.flops * convolution.count == 2 * 2 * 5 * 2 * 2 * 27
    assert not any("selects depends on the data" in note for note in job.notes)


def test_results_are_written_into_a_tensor_of_zeros_on_the_cpu(tmp_path: Path) -> None:
    job = trace_code(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(20):
            optimizer.zero_grad()
            hidden = model(torch.zeros(1, 4))
            scores = torch.zeros(3)
            for i in range(3):
                scores[i] = torch.dot(hidden.view(-1), hidden.view(-1))
            weights = scores.softmax(0).view(1, 1, -1)
            loss = weights.bmm(torch.cat([hidden[None], hidden[None], hidden[None]], 1)).sum()
            loss.backward()
            optimizer.step()
        """,
    )
    assert job.loop.steps_per_epoch == 20
    products = [op for op in job.step.ops if op.name == "aten.bmm" and op.stage is Stage.FORWARD]
    assert sum(op.flops * op.count for op in products) == 2 * 3 * 4


def test_lengths_are_calculated_on_the_gpu_for_packed_rows_and_a_ctc_loss(tmp_path: Path) -> None:
    job = trace_code(
        tmp_path,
        """
        import torch
        from torch.nn.utils.rnn import pack_padded_sequence
        net = torch.nn.GRU(6, 5).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(9):
            frames, targets = torch.tensor([19, 15]).cuda(), torch.randint(1, 5, (7,)).cuda()
            lengths = torch.div(frames + 1, 2, rounding_mode="floor")
            shares = (lengths.float() / lengths.max() * 10).long()
            assert lengths.tolist() == [10, 8] and shares.tolist() == [10, 8]
            packed, _ = net(pack_padded_sequence(torch.rand(10, 2, 6).cuda(), lengths.cpu()))
            assert len(packed.data) == 18
            rising, order = lengths.sort()
            assert rising.tolist() == [8, 10] and lengths[order].tolist() == [8, 10] and order.tolist() == [1, 0]
            assert torch.cat([lengths, rising]).tolist() == [10, 8, 8, 10]
            scores = torch.nn.utils.rnn.pad_packed_sequence(packed)[0].log_softmax(-1)
            loss = torch.nn.functional.ctc_loss(scores, targets, lengths, torch.tensor([4, 3]).cuda())
            loss.backward()
            optimizer.step()
        """,
    )
    (loss,) = (op for op in job.step.ops if op.name == "aten._ctc_loss")
    assert loss.bytes_written >= 2 * 10 * (2 * 4 + 1) * 4
    assert any(op.name == "aten._ctc_loss_backward" for op in job.step.ops)


@pytest.mark.usefixtures("_without_values")
@pytest.mark.parametrize("selected", [
    "torch.where(nn.functional.one_hot(chosen, 8).permute(2, 1, 0)[expert])[1]",
    "(chosen == expert).any(1).nonzero()[:, 0]",
    "torch.zeros(64, 8, device='cuda').scatter_(1, chosen, 1).bool()[:, expert].nonzero()[:, 0]",
])  # fmt: skip
def test_each_expert_gets_its_share_of_the_tokens(tmp_path: Path, selected: str) -> None:
    job = trace_code(
        tmp_path,
        f"""
        import torch
        from torch import nn
        gate, experts = nn.Linear(16, 8).cuda(), nn.ModuleList(nn.Linear(16, 16) for _ in range(8)).cuda()
        optimizer = torch.optim.SGD([*gate.parameters(), *experts.parameters()], 0.1)
        for step in range(9):
            tokens = torch.rand(64, 16).cuda()
            weights, chosen = gate(tokens).softmax(1).topk(2, dim=1)
            out = torch.zeros_like(tokens)
            for expert, layer in enumerate(experts):
                rows = {selected}
                out.index_add_(0, rows, layer(tokens[rows]))
            (out.sum() + weights.sum()).backward()
            optimizer.step()
        """,
    )
    products = [op for op in job.step.ops if op.name == "aten.addmm" and op.stage is Stage.FORWARD]
    assert sum(op.flops * op.count for op in products) == 2 * 64 * 16 * 8 + 8 * 2 * 16 * 16 * 16
    assert any("0.25 of all was assumed" in note or "0.125 of all was assumed" in note for note in job.notes)


def test_a_part_from_an_unknown_place_on_has_its_size(tmp_path: Path) -> None:
    job = trace_code(
        tmp_path,
        """
        import torch
        net = torch.nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(9):
            images = torch.rand(3, 20, device="cuda")
            start = (torch.rand(3, 2, device="cuda") * 12).long()
            end = start + 8
            parts = torch.stack([image[start[n, 1] : end[n, 1]] for n, image in enumerate(images)])
            assert parts.shape == (3, 8)
            net(parts).sum().backward()
            optimizer.step()
        """,
    )
    assert job.step.parameters == 36


def test_subclasses_of_tensors_and_empty_tensors_of_a_type_are_made(tmp_path: Path) -> None:
    job = trace_code(
        tmp_path,
        """
        import torch
        class Image(torch.Tensor):
            def __new__(cls, data):
                return torch.as_tensor(data).as_subclass(cls)
        net = torch.nn.Linear(8, 4).cuda()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        losses = torch.cuda.FloatTensor()
        for step in range(9):
            loss = net(Image(torch.rand(3, 8)).to("cuda") + Image(torch.rand(3, 8, device="cuda"))).sum()
            loss.backward()
            optimizer.step()
            losses = torch.cat((losses, loss.detach().unsqueeze(0)), dim=0)
            assert losses.shape == (step + 1,)
        """,
    )
    assert job.step.parameters == 36


@pytest.mark.usefixtures("_without_values")
@pytest.mark.parametrize(
    "counts", ["(gates > 0).sum(0)", "torch.bincount(chosen.flatten(), minlength=4)", "(gates != 0).sum(dim=0).cpu()"]
)
def test_the_tokens_of_experts_are_spread_evenly(tmp_path, counts):
    job = trace_code(
        tmp_path,
        f"""
        import torch
        gate = torch.nn.Linear(8, 4).cuda()
        experts = torch.nn.ModuleList(torch.nn.Linear(8, 3) for _ in range(4)).cuda()
        optimizer = torch.optim.Adam([*gate.parameters(), *experts.parameters()])
        for step in range(9):
            x = torch.rand(16, 8, device="cuda")
            values, chosen = gate(x).topk(2, dim=1)
            gates = torch.zeros(16, 4, device="cuda").scatter(1, chosen, values.softmax(1))
            rows = torch.nonzero(gates)[:, 0]
            parts = torch.split(x[rows], ({counts}).tolist())
            out = torch.cat([expert(part) for expert, part in zip(experts, parts)])
            (out.sum() + gates.sum()).backward()
            optimizer.step()
        """,
    )
    products = Counter(tuple(op.inputs[1].shape) for op in job.step.ops if op.name == "aten.addmm")
    assert products == {(16, 8): 1, (8, 8): 4}


OPERATIONS = {
    "a cell of a GRU": "torch.nn.GRUCell(8, 8).cuda()(x)",
    "a cell without biases": "torch.nn.GRUCell(8, 8, bias=False).cuda()(x, x)",
    "a margin of classes": "torch.nn.functional.multi_margin_loss(x, classes, reduction='none').unsqueeze(1) + x",
    "a margin of labels": "torch.nn.functional.multilabel_margin_loss(x, labels) + x",
    "a sample of a beta distribution": "torch.distributions.Beta(x, x + 1).rsample()",
    "a sample of a Dirichlet distribution": "torch.distributions.Dirichlet(x).rsample()",
    "an orthogonal layer": "torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(8, 8)).cuda()(x)",
    "a derivative forward": "torch.func.jvp(torch.sin, (x.detach(),), (x.detach(),))[1] + x",
    "a spectrogram and back": "torch.istft(torch.stft(x.repeat(1, 50), 16, window=window, return_complex=True), 16, "
    "window=window)[:, :8]",
    "a condition of bytes": "torch.where((x > 0).prod(-1, keepdim=True, dtype=torch.uint8), x, x + 1)",
    "a list of what can be overridden": "x if torch.overrides.get_overridable_functions() else None",
    "lengths on the host": "torch.nn.functional.ctc_loss(x.expand(9, 4, 8), labels, torch.full((4,), 9), "
    "torch.full((4,), 3)) + x",
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_an_operation_that_pytorch_has_no_shape_rule_for_is_traced(tmp_path, operation):
    job = trace_code(
        tmp_path,
        f"""
        import torch
        net = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.Adam(net.parameters())
        window = torch.ones(16, device="cuda")
        classes, labels = torch.randint(0, 8, (4,)).cuda(), torch.randint(1, 8, (4, 8)).cuda()
        for step in range(9):
            x = net(torch.rand(4, 8, device="cuda")).sigmoid()
            y = {operation}
            assert y.shape == (4, 8)
            y.sum().backward()
            optimizer.step()
        """,
    )
    assert (job.loop.steps_per_epoch, job.step.device_type) == (9, "cuda")

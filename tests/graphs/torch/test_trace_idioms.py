"""Idioms of public training scripts are traced with their facts right."""

import shlex
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from leadline.bench.corpus import CORPUS
from leadline.bench.trace import wrong_facts
from leadline.core.graph import OpKind, Stage, TracedJob
from leadline.core.workload import ModelKind, ModelSource, Workload
from leadline.execution.processes import run_process
from leadline.graphs.torch.trace import trace_command


@pytest.mark.parametrize("name", ["skipgram", "convnext_ema", "ddp_resnet"])
def test_a_script_is_traced_with_every_fact_right_and_its_evaluation(tmp_path: Path, name: str) -> None:
    script = next(script for script in CORPUS if script.name == name)
    job = _run(script.command(), tmp_path)
    assert [] == wrong_facts(script, job)
    assert (script.evaluation_batches is not None) == (job.evaluation is not None and bool(job.evaluation.ops))
    assert [] == list(tmp_path.iterdir())


def test_sparse_gradients_are_traced_as_dense_with_low_confidence(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        table = torch.nn.EmbeddingBag(100, 8, mode="sum", sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.1)
        for step in range(9):
            table(torch.ones(4, 3, dtype=torch.long, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert job.low_confidence
    assert any("sparse gradients" in note for note in job.notes)
    assert 800 == job.step.parameters


def test_synchronised_batch_norm_sends_its_statistics_both_ways(tmp_path: Path) -> None:
    code = """
        import os, torch, torch.distributed as dist
        dist.init_process_group("nccl")
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
        model = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.rand(2, 3, 8, 8).cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    job = _trace(tmp_path, code, ranks=4)
    sent = [op for op in job.step.ops if op.kind is OpKind.COMMUNICATION]
    weights = 3 * 8 * 9 + 8 + 8 + 8
    assert Counter({(Stage.FORWARD, 4 * 4 * 17): 1, (Stage.BACKWARD, 64): 1, (Stage.BACKWARD, 4 * weights): 1}) == (
        Counter((op.stage, op.dims["bytes"]) for op in sent)
    )
    assert {4} == {op.dims["ranks"] for op in sent}


def test_values_sent_to_the_device_come_back_as_they_were(tmp_path: Path) -> None:
    job = _trace(
        tmp_path,
        """
        import torch
        counts = torch.tensor([3.0, 4.0], device="cuda")
        assert [3.0, 4.0] == counts.tolist() and 3 == torch.tensor(3).cuda().item()
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(9):
            model(torch.rand(4, 4).cuda()).sum().backward()
            optimizer.step()
        """,
    )
    assert 20 == job.step.parameters


def _trace(folder: Path, code: str, *, ranks: int = 0) -> TracedJob:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    launcher = ("-m", "torch.distributed.run", f"--nproc_per_node={ranks}") if ranks else ()
    return _run((sys.executable, *launcher, str(script)), folder)


def _run(words: tuple[str, ...], folder: Path) -> TracedJob:
    workload = Workload(ModelSource(ModelKind.COMMAND, shlex.join(words), words))
    return trace_command(workload, runner=run_process, cwd=folder, timeout_s=60)

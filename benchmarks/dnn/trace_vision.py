"""Trace the vision models of a table of measured steps, and pack their graphs into one file.

Run ``python -m benchmarks.dnn.trace_vision DATA WORKDIR`` with torch and timm installed. It takes about 50 minutes on
two cores and resumes where it was stopped. The published steps used timm's fast norms in inference, so these are
traced. A model with fused attention is traced again with explicit attention, as PyTorch before 2.0 ran it; training is
traced with explicit attention only.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dnn.vision_graphs import VISION_GRAPHS, PackedVision, VisionGraph, VisionOp, pack_vision
from benchmarks.forked_trace import trace_in_forks
from benchmarks.tables import read_table
from leadline.core.graph import BYTES_PER_ELEMENT, OpKind, Stage

BATCH = 1031
"""A prime that no layer has as a width: sizes that it divides grow with the batch."""
TIMEOUT_S = 100.0
BUILDER = Path(__file__).with_name("timm_model.py")
OPERANDS, RESULTS = 3, 2

Numbers = tuple[int, ...]
Job = tuple[str, int, str, bool]
"""Model, image size, phase, and whether attention is written out."""


def main(data: Path, folder: Path) -> None:
    """Trace the models that have no trace yet, then pack all."""
    folder.mkdir(parents=True, exist_ok=True)
    _begin()
    for job in jobs(data):
        _trace(job, folder)
    for job in jobs(data):
        model, image, phase, _ = job
        if phase == "inference" and "attention" in _kinds(folder, job):
            _trace((model, image, phase, True), folder)
    packer = VisionPacker()
    for path in sorted(folder.glob("*.json")):
        packer.add(path)
    pack_vision(packer.packed(), VISION_GRAPHS)


def jobs(data: Path) -> list[Job]:
    """Return each model, image size and phase that was measured on a GPU."""
    columns = read_table(data, "timm_steps", ["model", "img_size", "mode", "hardware", "dynamo"])
    on_gpu = np.array([str(name).startswith("rtx") for name in columns["hardware"]]) & ~columns["dynamo"].astype(bool)
    cases = {
        (str(columns["model"][row]), int(columns["img_size"][row]), str(columns["mode"][row]))
        for row in np.flatnonzero(on_gpu)
    }
    return [
        (model, image, "training" if mode == "train" else "inference", mode == "train")
        for model, image, mode in sorted(cases)
    ]


def _begin() -> None:
    """Import what every traced model needs; each model is then traced in a fork."""
    import torch  # noqa: PLC0415 - the tracer's own imports, in its own order

    from leadline.graphs.torch.worker import compiler, patches  # noqa: PLC0415

    torch.set_num_threads(1)
    compiler.postpone_compiler()
    patches.define_torchvision_ops()
    patches.define_torchvision_ops = lambda: None
    import timm  # noqa: PLC0415, F401 - after torchvision's ops are there


def _trace(job: Job, folder: Path) -> None:
    """Trace one model; a failure leaves a file with its reason."""
    target = folder / (_name(job) + ".json")
    if target.exists():
        return
    model, image, phase, explicit = job

    def prepare() -> None:
        from timm.layers import set_fast_norm, set_fused_attn  # noqa: PLC0415

        set_fused_attn(not explicit)
        set_fast_norm(phase == "inference")
        os.environ["LEADLINE_TIMM_MODEL"] = f"{model}@{image}"

    trace_in_forks(
        target, BUILDER, (BATCH, 3, image, image), phase=phase, autocast="float16", timeout_s=TIMEOUT_S,
        prepare=prepare,
    )  # fmt: skip


def _name(job: Job) -> str:
    model, image, phase, explicit = job
    return f"{model}@{image}@{phase}@{'explicit' if explicit else 'fused'}"


def _kinds(folder: Path, job: Job) -> set[str]:
    """Return the kinds of op of a traced model; attention without a fused kernel counts as attention too."""
    path = folder / (_name(job) + ".json")
    answer = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    ops = answer.get("job", {}).get("step", {}).get("ops", ())
    return {"attention" if op["name"] == "aten._safe_softmax" else op["kind"] for op in ops}


class VisionPacker:
    """Gathers traced graphs over one list of ops."""

    def __init__(self) -> None:
        self._ops: dict[str, int] = {}
        self._packed: list[VisionOp] = []
        self._graphs: list[VisionGraph] = []

    def add(self, path: Path) -> None:
        """Add one answer of the tracer if it is a graph."""
        answer = json.loads(path.read_text(encoding="utf-8"))
        if "job" not in answer:
            return
        step = answer["job"]["step"]
        model, image, phase, attention = path.stem.split("@")
        numbers, counts, reads = self._merged(step["ops"])
        self._graphs.append(
            VisionGraph(model, int(image), phase, attention, step["parameters"], numbers, counts, reads)
        )

    def packed(self) -> PackedVision:
        """Return all packed graphs."""
        import timm  # noqa: PLC0415
        import torch  # noqa: PLC0415

        versions = {"torch": str(torch.__version__).partition("+")[0], "timm": str(timm.__version__)}
        return PackedVision(versions, tuple(self._packed), tuple(self._graphs))

    def _merged(self, ops: list[dict[str, Any]]) -> tuple[Numbers, Numbers, tuple[Numbers, ...]]:
        """Return the ops that move data, equal ones as one, their counts, and which each reads past views."""
        places: dict[int, int] = {}
        counts: list[int] = []
        reads: list[set[int]] = []
        behind: list[set[int]] = []
        for position, op in enumerate(ops):
            sources = set().union(*(behind[source] for source in op["sources"])) if op["sources"] else set()
            if not op["bytes_read"] + op["bytes_written"] or (position == 0 and not op["bytes_read"]):
                behind.append(sources)  # a view, or the copy of the input from the host, which was not measured
                continue
            place = places.setdefault(self._number(op), len(counts))
            if place == len(counts):
                counts.append(0)
                reads.append(set())
            counts[place] += 1
            reads[place] |= sources - {place}
            behind.append({place})
        return tuple(places), tuple(counts), tuple(tuple(sorted(sources)) for sources in reads)

    def _number(self, op: dict[str, Any]) -> int:
        packed = packed_op(op)
        key = repr(packed)
        if key not in self._ops:
            self._ops[key] = len(self._packed)
            self._packed.append(packed)
        return self._ops[key]


def packed_op(op: dict[str, Any]) -> VisionOp:
    """Return an op traced at ``BATCH`` as one of any batch."""
    read_share, written_share = _share(op["inputs"]), _share(op["outputs"])
    grows = read_share > 0 or written_share > 0
    flops = op["flops"]
    return VisionOp(
        op["name"], OpKind(op["kind"]), Stage(op["stage"]), op["dtype"],
        (_round(flops / BATCH), 0.0) if grows else (0.0, _round(flops)),
        (_round(op["bytes_read"] * read_share / BATCH), _round(op["bytes_read"] * (1 - read_share))),
        (_round(op["bytes_written"] * written_share / BATCH), _round(op["bytes_written"] * (1 - written_share))),
        op.get("kernels", 1), {name: _size(size) for name, size in op["dims"].items()},
        _shapes(op["inputs"][:OPERANDS]), _shapes(op["outputs"][:RESULTS]),
    )  # fmt: skip


def _share(specs: list[dict[str, Any]]) -> float:
    """Return the share of the bytes of tensors that grow with the batch."""
    sizes = [(int(np.prod(spec["shape"], dtype=object)), BYTES_PER_ELEMENT.get(spec["dtype"], 4)) for spec in specs]
    total = sum(count * width for count, width in sizes)
    return sum(count * width for count, width in sizes if count and count % BATCH == 0) / total if total else 0.0


def _shapes(specs: list[dict[str, Any]]) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((tuple(_size(size) for size in spec["shape"]), spec["dtype"]) for spec in specs)


def _size(size: int) -> int:
    return -size // BATCH if size and size % BATCH == 0 else size


def _round(value: float) -> float:
    return float(f"{value:.7g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

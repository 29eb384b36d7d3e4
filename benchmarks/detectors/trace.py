"""Trace one training step of each model of the measured table, and pack their memory into the file the bench reads.

Run as ``python -m benchmarks.detectors.trace DATA CONFIGS WORKDIR`` where torch 2.13, mmcv 1.3.0 (made with
``MMCV_WITH_OPS=0``), mmsegmentation 0.11.0 and mmdetection 2.11.0 are. CONFIGS has the folders ``mmseg`` and
``mmdet``, each with the ``configs`` that the wheels of mmsegmentation 0.30.0 and mmdetection 2.28.2 carry in
``.mim``. detectron2 0.6 is in the registry as pb1-detectron2, its compiled part left out. It takes about half an hour
on one core, and goes on where it was stopped.

The models are the packages' own, run by Leadline's tracer as any model function is. What their compiled ops take is in
``compiled_ops.py``, what the PyTorch of that time held in ``older_torch.py``. Where a detector selects by its data, the
trace selects all there is, and the configuration's own limits cut it: 2000 candidates a level and 1000 proposals an
image, of which 512 are sampled. Where nothing cuts it or tensors are sparse (FreeAnchor), a model is left out.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.detectors.batches import batch_of
from benchmarks.detectors.configurations import ListedModel, listed_models, matching_model, zoo_name
from benchmarks.detectors.graphs import DETECTOR_GRAPHS, DetectorPacker, pack_detectors
from benchmarks.detectors.published import PublishedPeak, published_peaks
from benchmarks.forked_trace import trace_in_forks

TIMEOUT_S = 200.0
BUILDERS = {package: Path(__file__).with_name(f"{name}_model.py") for package, name in (
    ("mmseg", "openmmlab"), ("mmdet", "openmmlab"), ("detectron2", "detectron2"),
)}  # fmt: skip
PACKAGES = ("mmseg", "mmdet")


def main(data: Path, folders: Path, scratch: Path) -> None:
    """Trace what is not traced yet, then pack all."""
    scratch.mkdir(parents=True, exist_ok=True)
    begin()
    from mmcv import Config  # noqa: PLC0415 - after its compiled part was stood in for

    from benchmarks.detectors import detectron2_model  # noqa: PLC0415

    models = [one for package in PACKAGES for one in listed_models(folders / package, package)]
    rows, _ = published_peaks(data)
    chosen = {row.key: _model_of(row, models) for row in rows}
    for one in sorted({one.file: one for one in chosen.values() if one is not None}.values(), key=lambda one: one.file):
        target = _answer_of(one, scratch)
        if target.exists():
            continue
        if one.package == "detectron2":
            trace(one.package, Path(one.file), detectron2_model.size_of(detectron2_model.configured(one.file)), target)
        else:
            path = folders / one.package / one.file
            trace(one.package, path, batch_of(Config.fromfile(str(path)), one.package), target)
    _pack(chosen, scratch)


def _model_of(row: PublishedPeak, models: list[ListedModel]) -> ListedModel | None:
    """Return the model of a row, with the name of its configuration."""
    if row.package != "detectron2":
        return matching_model(row, models)
    name = zoo_name(row)
    return ListedModel("detectron2", row.family, Path(name).stem, name, frozenset(), None) if name else None


def begin() -> None:
    """Import once what every traced model needs; each is then traced in a fork."""
    import torch  # noqa: PLC0415

    from benchmarks.detectors import compiled_ops, detectron2_model, older_torch  # noqa: PLC0415
    from leadline.graphs.torch.worker import import_patches  # noqa: PLC0415

    torch.set_num_threads(1)
    import_patches.postpone_compiler()
    import_patches.define_torchvision_ops()
    import_patches.define_torchvision_ops = lambda: None
    compiled_ops.install()
    older_torch.name_older_things()
    detectron2_model.install()
    import detectron2.modeling  # noqa: PLC0415, F401
    import mmdet.models  # noqa: PLC0415, F401
    import mmseg.models  # noqa: PLC0415, F401


def trace(package: str, file: Path, size: tuple[int, int, int], target: Path) -> None:
    """Trace one model on ``size`` (images, height, width); one that fails leaves a file that says why."""
    images, height, width = size

    def prepare() -> None:
        from benchmarks.detectors import older_torch  # noqa: PLC0415

        older_torch.install()
        os.environ["LEADLINE_MODEL"] = f"{package}:{file}"

    trace_in_forks(
        target, BUILDERS[package], (images, 3, height, width), timeout_s=TIMEOUT_S, prepare=prepare,
        convert=lambda answer: {**brief(answer), "size": size},
    )  # fmt: skip


def brief(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what the memory of a traced step rests on: storage events, stages of ops, and convolutions."""
    if "job" not in answer:
        return answer
    step = answer["job"]["step"]
    stages: list[list[Any]] = []
    for op in step["ops"]:
        if not stages or stages[-1][0] != op["stage"]:
            stages.append([op["stage"], 0])
        stages[-1][1] += 1
    return {
        "parameters": step["parameters"], "parameter_bytes": step["parameter_bytes"], "stages": stages,
        "convolutions": [
            [place, op["name"], op["dims"]] for place, op in enumerate(step["ops"]) if op["kind"] == "conv"
        ],
        "events": [[one["op"], one["storage"], one["size_bytes"], one["category"]] for one in step["events"]],
    }  # fmt: skip


def _answer_of(one: ListedModel, scratch: Path) -> Path:
    return scratch / f"{one.package}@{one.file.replace('/', '@')}.json"


def _pack(chosen: dict[str, ListedModel | None], scratch: Path) -> None:
    """Pack the steps of all rows, and why others have none."""
    packer = DetectorPacker()
    rows: dict[str, tuple[str, int]] = {}
    failed: dict[str, str] = {}
    for key, one in chosen.items():
        if one is None:
            failed[key] = "no configuration, or no telling which of several"
            continue
        target = _answer_of(one, scratch)
        answer = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
        if "events" in answer:
            rows[key] = one.name, packer.add(answer, tuple(answer["size"]))
        else:
            failed[key] = "the model cannot be traced"
            print(f"{one.name}: {answer.get('failure', {}).get('reason', 'it took too long')}", file=sys.stderr)  # noqa: T201
    pack_detectors(packer.packed(_versions(), rows, failed), DETECTOR_GRAPHS)


def _versions() -> dict[str, str]:
    from importlib.metadata import version  # noqa: PLC0415

    return {
        name: version(name).partition("+")[0] for name in ("torch", "mmcv", "mmsegmentation", "mmdet", "pb1-detectron2")
    }


def _paths(arguments: Sequence[str]) -> list[Path]:
    return [Path(one).resolve() for one in arguments]


if __name__ == "__main__":
    main(*_paths(sys.argv[1:]))

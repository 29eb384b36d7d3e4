"""Trace one training step of each model of the published tables, and pack their memory into one file.

Run ``python -m benchmarks.detectors.trace DATA CONFIGS WORKDIR`` with torch 2.13, mmcv 1.3.0 (built with
``MMCV_WITH_OPS=0``), mmsegmentation 0.11.0 and mmdetection 2.11.0. CONFIGS has the folders ``mmseg`` and ``mmdet``,
each with the ``configs`` in ``.mim`` of the wheels mmsegmentation 0.30.0 and mmdetection 2.28.2. detectron2 0.6 is
published as pb1-detectron2; its compiled part is not needed. A run takes about half an hour on one core and resumes
where it was stopped.

Leadline's tracer runs the packages' own models as any model function. ``compiled_ops.py`` has the memory of their
compiled ops, ``older_torch.py`` that of the PyTorch of that time. Where a detector selects by its data, the trace
selects everything, and the configuration's own limits apply: 2000 candidates a level and 1000 proposals an image, of
which 512 are sampled. Models without such a limit or with sparse tensors (FreeAnchor) are left out.
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
    """Trace the models that have no trace yet, then pack all."""
    scratch.mkdir(parents=True, exist_ok=True)
    begin()
    from mmcv import Config  # noqa: PLC0415 - after its compiled part was replaced

    from benchmarks.detectors import detectron2_model  # noqa: PLC0415

    models = [model for package in PACKAGES for model in listed_models(folders / package, package)]
    rows, _ = published_peaks(data)
    chosen = {row.key: _model_of(row, models) for row in rows}
    by_file = {model.file: model for model in chosen.values() if model is not None}
    for name in sorted(by_file):
        model = by_file[name]
        target = _answer_of(model, scratch)
        if target.exists():
            continue
        if model.package == "detectron2":
            trace(model.package, Path(name), detectron2_model.size_of(detectron2_model.configured(name)), target)
        else:
            path = folders / model.package / name
            trace(model.package, path, batch_of(Config.fromfile(str(path)), model.package), target)
    _pack(chosen, scratch)


def _model_of(row: PublishedPeak, models: list[ListedModel]) -> ListedModel | None:
    """Return the model of a row, with the name of its configuration."""
    if row.package != "detectron2":
        return matching_model(row, models)
    name = zoo_name(row)
    return ListedModel("detectron2", row.family, Path(name).stem, name, frozenset(), None) if name else None


def begin() -> None:
    """Import what every traced model needs; each model is then traced in a fork."""
    import torch  # noqa: PLC0415

    from benchmarks.detectors import compiled_ops, detectron2_model, older_torch  # noqa: PLC0415
    from leadline.graphs.torch.worker import compiler, patches  # noqa: PLC0415

    torch.set_num_threads(1)
    compiler.postpone_compiler()
    patches.define_torchvision_ops()
    patches.define_torchvision_ops = lambda: None
    compiled_ops.install()
    older_torch.name_older_things()
    detectron2_model.install()
    import detectron2.modeling  # noqa: PLC0415, F401
    import mmdet.models  # noqa: PLC0415, F401
    import mmseg.models  # noqa: PLC0415, F401


def trace(package: str, file: Path, size: tuple[int, int, int], target: Path) -> None:
    """Trace one model on ``size`` (images, height, width); a failure leaves a file with its reason."""
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
    """Return what determines the memory of a traced step: storage events, stages of ops, and convolutions."""
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
        "events": [[event[key] for key in ("op", "storage", "size_bytes", "category")] for event in step["events"]],
    }  # fmt: skip


def _answer_of(model: ListedModel, scratch: Path) -> Path:
    return scratch / f"{model.package}@{model.file.replace('/', '@')}.json"


def _pack(chosen: dict[str, ListedModel | None], scratch: Path) -> None:
    """Pack the steps of all rows, and the reasons of rows without one."""
    packer = DetectorPacker()
    rows: dict[str, tuple[str, int]] = {}
    failed: dict[str, str] = {}
    for key, model in chosen.items():
        if model is None:
            failed[key] = "no configuration matches, or several do"
            continue
        target = _answer_of(model, scratch)
        answer = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
        if "events" in answer:
            rows[key] = model.name, packer.add(answer, tuple(answer["size"]))
        else:
            failed[key] = "the model cannot be traced"
            print(f"{model.name}: {answer.get('failure', {}).get('reason', 'it took too long')}", file=sys.stderr)  # noqa: T201
    pack_detectors(packer.packed(_versions(), rows, failed), DETECTOR_GRAPHS)


def _versions() -> dict[str, str]:
    from importlib.metadata import version  # noqa: PLC0415

    return {
        name: version(name).partition("+")[0] for name in ("torch", "mmcv", "mmsegmentation", "mmdet", "pb1-detectron2")
    }


def _paths(arguments: Sequence[str]) -> list[Path]:
    return [Path(argument).resolve() for argument in arguments]


if __name__ == "__main__":
    main(*_paths(sys.argv[1:]))

"""The configuration of each row of a published table, from the index of models in later releases.

The tables of 2021 link their configurations, but the links are not in the data. The wheels of both packages have an
index (``*.yml`` files) with the accuracies and the memory of each model. A row matches the configuration of its family
with all its accuracies; of several, the one with its memory. If none matches, it is the one whose name consists of the
row's words.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detectors.published import PublishedPeak, parse_number

ACCURACY = re.compile(r"^(?!TTA)(.*\bAP\b.*|AR.*|mIoU|Dice)$")
SCHEDULE = re.compile(r"\d+(x|e|k|ki)|\d+x\d+|coco|mstrain")
ALIKE = {"dcn": ("dcn", "dcnv2")}
"""Family of the tables → folders of its configurations in later releases."""

ZOO = (
    ("Faster R-CNN", "COCO-Detection/faster_rcnn_{backbone}_{schedule}.yaml"),
    ("RetinaNet", "COCO-Detection/retinanet_{backbone}_FPN_{schedule}.yaml"),
    ("COCO Instance", "COCO-InstanceSegmentation/mask_rcnn_{backbone}_{schedule}.yaml"),
    ("COCO Person Keypoint", "COCO-Keypoints/keypoint_rcnn_{backbone}_{schedule}.yaml"),
    ("LVIS", "LVISv0.5-InstanceSegmentation/mask_rcnn_{backbone}_{schedule}.yaml"),
)
"""Beginning of a section of detectron2's table, and the path of its configurations in the zoo."""
OTHERS = {
    "RPN R50-C4": "COCO-Detection/rpn_R_50_C4_{schedule}.yaml",
    "RPN R50-FPN": "COCO-Detection/rpn_R_50_FPN_{schedule}.yaml",
    "Fast R-CNN R50-FPN": "COCO-Detection/fast_rcnn_R_50_FPN_{schedule}.yaml",
    "R50-FPN": "COCO-PanopticSegmentation/panoptic_fpn_R_50_{schedule}.yaml",
    "R101-FPN": "COCO-PanopticSegmentation/panoptic_fpn_R_101_{schedule}.yaml",
    "R50-FPN, Cityscapes": "Cityscapes/mask_rcnn_R_50_FPN.yaml",
    "R50-C4, VOC": "PascalVOC-Detection/faster_rcnn_R_50_C4.yaml",
    "Baseline R50-FPN": "COCO-InstanceSegmentation/mask_rcnn_R_50_FPN_{schedule}.yaml",
    "Deformable Conv": "Misc/mask_rcnn_R_50_FPN_{schedule}_dconv_c3-c5.yaml",
    "Cascade R-CNN": "Misc/cascade_mask_rcnn_R_50_FPN_{schedule}.yaml",
    "GN": "Misc/mask_rcnn_R_50_FPN_{schedule}_gn.yaml",
    "SyncBN": "Misc/mask_rcnn_R_50_FPN_{schedule}_syncbn.yaml",
    "GN (from scratch)": "Misc/scratch_mask_rcnn_R_50_FPN_{schedule}_gn.yaml",
    "SyncBN (from scratch)": "Misc/scratch_mask_rcnn_R_50_FPN_{schedule}_syncbn.yaml",
    "Panoptic FPN R101": "Misc/panoptic_fpn_R_101_dconv_cascade_gn_3x.yaml",
    "Mask R-CNN X152": "Misc/cascade_mask_rcnn_X_152_32x8d_FPN_IN5k_gn_dconv.yaml",
}
"""Names of its other sections."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One model of an index; ``file`` is relative to the folder of the package."""

    package: str
    family: str
    name: str
    file: str
    accuracies: frozenset[float]
    memory_gb: float | None


def listed_models(folder: Path, package: str) -> Iterator[ListedModel]:
    """Yield the models in a package's index, and the configurations of families without an index.

    ``folder`` holds the package's ``configs``.
    """
    import yaml  # noqa: PLC0415 - needed to make the packed file alone

    for path in sorted((folder / "configs").glob("*/*.yml")):
        index = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for model in index if isinstance(index, list) else index.get("Models", ()):
            yield listed_model(model, package, path.parent.name)
    for path in sorted((folder / "configs").glob("[a-z]*/*.py")):
        if not list(path.parent.glob("*.yml")):
            file = path.relative_to(folder).as_posix()
            yield ListedModel(package, path.parent.name, path.stem, file, frozenset(), None)


def listed_model(model: dict[str, Any], package: str, family: str) -> ListedModel:
    """Return one entry of an index."""
    results = model.get("Results") or ()
    metrics = {parse_number(value) for result in results for value in (result.get("Metrics") or {}).values()}
    memory = parse_number((model.get("Metadata") or {}).get("Training Memory (GB)", ""))
    accuracies = frozenset(round(metric, 2) for metric in metrics if metric is not None)
    return ListedModel(package, family, model["Name"], model["Config"], accuracies, memory)


def matching_model(row: PublishedPeak, models: Sequence[ListedModel]) -> ListedModel | None:
    """Return the configuration of a row; None if there is none or several match."""
    folders = ALIKE.get(row.family, (row.family,))
    family = [model for model in models if model.package == row.package and model.family in folders]
    metrics = {parse_number(text) for name, text in row.cells.items() if ACCURACY.match(name)} - {None}
    accuracies = {round(metric, 2) for metric in metrics if metric}
    matches = [model for model in family if metrics and accuracies <= model.accuracies]
    if len(matches) > 1:
        memory = parse_number(row.cells.get("Mem (GB)", ""))
        matches = [model for model in matches if model.memory_gb == memory] or matches
    return _only(matches or [model for model in family if _is_named(model, row)])


def zoo_name(row: PublishedPeak) -> str | None:
    """Return the name in detectron2's zoo of a row of its table; None if there is none."""
    section, name, schedule = (row.cells[heading] for heading in ("Section", "Backbone", "Lr schd"))
    backbone = re.sub(r"^([RX])(\d+)", r"\1_\2", name).replace("-", "_").replace("X_101_", "X_101_32x8d_")
    for begin, pattern in ZOO:
        if section.startswith(begin):
            return pattern.format(backbone=backbone, schedule=schedule)
    unlisted = OTHERS.get(name)
    return unlisted.format(schedule=schedule) if unlisted else None


def _only(models: list[ListedModel]) -> ListedModel | None:
    """Return the first model if all differ in nothing but their schedule."""
    names = {tuple(part for part in model.name.split("_") if not SCHEDULE.fullmatch(part)) for model in models}
    return models[0] if len(names) == 1 else None


def _is_named(model: ListedModel, row: PublishedPeak) -> bool:
    """Return whether a name consists of the row's backbone, style and schedule, and of common words."""
    words = set(model.name.lower().split("_"))
    cells = row.cells
    backbone = set(re.sub(r"([a-z])-(\d)", r"\1\2", cells.get("Backbone", "-").lower()).replace("-", " ").split())
    style = {"caffe"} if cells.get("Style") == "caffe" else set()
    required = backbone | style | {cells.get("Lr schd", "-")}
    common = {*re.split(r"[_-]", row.family), "mask", "rcnn", "mstrain", "coco", "fpn", "lvis", "v1", "sample1e-3"}
    return required <= words and words - required <= common

"""Which configuration a row of a makers' table is, by the index of models that later releases carry beside it.

The tables of 2021 link their configurations, but the links are not in the data. Both packages' wheels have an index
(``*.yml`` beside the configurations) with the accuracies and the memory of each model: a row is the one configuration
of its family that has all its accuracies, and of several the one with its memory. Where the index has them otherwise,
it is the one whose name is made of the row's words.
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
"""Family of the tables → the folders that its configurations are in since."""

ZOO = (
    ("Faster R-CNN", "COCO-Detection/faster_rcnn_{backbone}_{schedule}.yaml"),
    ("RetinaNet", "COCO-Detection/retinanet_{backbone}_FPN_{schedule}.yaml"),
    ("COCO Instance", "COCO-InstanceSegmentation/mask_rcnn_{backbone}_{schedule}.yaml"),
    ("COCO Person Keypoint", "COCO-Keypoints/keypoint_rcnn_{backbone}_{schedule}.yaml"),
    ("LVIS", "LVISv0.5-InstanceSegmentation/mask_rcnn_{backbone}_{schedule}.yaml"),
)
"""How the sections of detectron2's table begin, and where their configurations are in its zoo."""
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
    """One model of an index: its ``file`` below the folder of the package, and the figures it is told with."""

    package: str
    family: str
    name: str
    file: str
    accuracies: frozenset[float]
    memory_gb: float | None


def listed_models(folder: Path, package: str) -> Iterator[ListedModel]:
    """Yield the models that the index of a package lists, and the configurations of families that have no index.

    ``folder`` holds the package's ``configs``.
    """
    import yaml  # noqa: PLC0415 - needed to make the packed file alone

    for path in sorted((folder / "configs").glob("*/*.yml")):
        told = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for model in told if isinstance(told, list) else told.get("Models", ()):
            yield listed_model(model, package, path.parent.name)
    for path in sorted((folder / "configs").glob("[a-z]*/*.py")):
        if not list(path.parent.glob("*.yml")):
            file = path.relative_to(folder).as_posix()
            yield ListedModel(package, path.parent.name, path.stem, file, frozenset(), None)


def listed_model(model: dict[str, Any], package: str, family: str) -> ListedModel:
    """Return one entry of an index."""
    results = model.get("Results") or ()
    figures = {parse_number(value) for one in results for value in (one.get("Metrics") or {}).values()}
    memory = parse_number((model.get("Metadata") or {}).get("Training Memory (GB)", ""))
    known = frozenset(round(one, 2) for one in figures if one is not None)
    return ListedModel(package, family, model["Name"], model["Config"], known, memory)


def matching_model(row: PublishedPeak, models: Sequence[ListedModel]) -> ListedModel | None:
    """Return the configuration of a row; ``None`` if there is none, or no telling which of several."""
    folders = ALIKE.get(row.family, (row.family,))
    own = [one for one in models if one.package == row.package and one.family in folders]
    told = {parse_number(text) for name, text in row.cells.items() if ACCURACY.match(name)} - {None}
    found = [one for one in own if told and {round(figure, 2) for figure in told if figure} <= one.accuracies]
    if len(found) > 1:
        found = [one for one in found if one.memory_gb == parse_number(row.cells.get("Mem (GB)", ""))] or found
    return _only(found or [one for one in own if _is_named(one, row)])


def zoo_name(row: PublishedPeak) -> str | None:
    """Return the name in detectron2's zoo of a row of its table; ``None`` if there is none."""
    section, name, schedule = (row.cells[one] for one in ("Section", "Backbone", "Lr schd"))
    backbone = re.sub(r"^([RX])(\d+)", r"\1_\2", name).replace("-", "_").replace("X_101_", "X_101_32x8d_")
    for begin, pattern in ZOO:
        if section.startswith(begin):
            return pattern.format(backbone=backbone, schedule=schedule)
    other = OTHERS.get(name)
    return other.format(schedule=schedule) if other else None


def _only(found: list[ListedModel]) -> ListedModel | None:
    """Return the first of some that differ in nothing but how long they train."""
    names = {tuple(part for part in one.name.split("_") if not SCHEDULE.fullmatch(part)) for one in found}
    return found[0] if len(names) == 1 else None


def _is_named(one: ListedModel, row: PublishedPeak) -> bool:
    """Tell whether a name is made of the words of the row: backbone, style and schedule, and of the family's own."""
    words = set(one.name.lower().split("_"))
    cells = row.cells
    backbone = set(re.sub(r"([a-z])-(\d)", r"\1\2", cells.get("Backbone", "-").lower()).replace("-", " ").split())
    style = {"caffe"} if cells.get("Style") == "caffe" else set()
    wanted = backbone | style | {cells.get("Lr schd", "-")}
    plain = {*re.split(r"[_-]", row.family), "mask", "rcnn", "mstrain", "coco", "fpn", "lvis", "v1", "sample1e-3"}
    return wanted <= words and words - wanted <= plain

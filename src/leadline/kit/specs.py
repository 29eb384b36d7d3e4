"""The measured models: names, sizes, and work per sample. ``zoo/models.json`` lists them and their families."""

import json
import pkgutil
from dataclasses import dataclass
from typing import Any, Dict, Tuple

TRAINING, INFERENCE, PREFILL, DECODE = "training", "inference", "prefill", "decode"


@dataclass(frozen=True)
class Spec:
    """One model."""

    name: str
    family: str
    kind: str
    """Input: ``image`` (batch x 3 x size x size), ``tokens`` or ``vector`` (batch x size)."""
    builder: str
    """Module in the zoo, and the function or class there."""
    arguments: Dict[str, Any]
    """Arguments of the builder."""
    work: Dict[int, float]
    """Floating-point operations of a forward pass per sample, by size; a multiply-add counts as two."""
    max_batch: int = 1024
    quick: bool = False
    traits: Tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """Required package, if any."""
        return self.name.rpartition(":")[0]

    @property
    def phases(self) -> Tuple[str, ...]:
        """The measured phases; inference of a decoder has two."""
        return (TRAINING, PREFILL, DECODE) if self.family == "gpt" else (TRAINING, INFERENCE)


def _spec(families: Dict[str, Any], model: Dict[str, Any]) -> Spec:
    work = {int(size): float(flops) for size, flops in model.pop("work").items()}
    family = families[model["family"]]
    return Spec(**{"arguments": {}, **model, **family, "work": work, "traits": tuple(family["traits"])})


_TABLE: Dict[str, Any] = json.loads(pkgutil.get_data("leadline.kit", "zoo/models.json") or b"")
SPECS = {model["name"]: _spec(_TABLE["families"], model) for model in _TABLE["models"]}
"""Models of the kit itself in plain torch, whose names indicate the architecture (published weights do not fit), and
models of packages (``timm:…``), measured only if the package is installed, with random weights: nothing is downloaded.
"""
LARGE = frozenset(("gpt-24x2048", "moe-12x768"))
"""Models of about a billion parameters, too slow to initialize on a CPU."""
PACKAGES = tuple(sorted({spec.package for spec in SPECS.values() if spec.package}))

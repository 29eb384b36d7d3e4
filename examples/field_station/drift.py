"""Drift detection, and what follows from a drift: more reviews for a while, and retrainings."""

from dataclasses import dataclass, field

import numpy as np
from river.drift import ADWIN

SAME_DRIFT = 400
"""Images for which a further detection belongs to the same drift."""
CALM_SHARE, DRIFT_SHARE = 0.06, 0.30
"""Of all images, reviewed while nothing drifts, and while the newest drift is fresh (`SAME_DRIFT` images)."""
ENOUGH = (40, 120)
"""Reviewed images since a drift with which the model is retrained, once for each number."""
WORSE = {"confidence": -1, "distance": 1}
"""Signals of the predictions, and the side on which a change does harm."""


@dataclass
class Drift:
    """Drift detection on inputs and on predictions by ADWIN (Bifet and Gavaldà 2007), an image at a time.

    Attributes:
        model: Name of the deployed model; the signals of its predictions start again with the next.
        since: Id of the first image after the newest drift; "" before any.
        retrained: How many of that drift's retrainings have been due.
        quiet: Images since it was detected.
        asked: Reviews that the station has asked for so far.
        recent: Ids of the newest images.
        drifts: Start and signals of each drift.
    """

    model: str = ""
    since: str = ""
    retrained: int = 0
    quiet: int = 0
    asked: float = 0.0
    recent: list[str] = field(default_factory=list)
    drifts: list[tuple[str, list[str]]] = field(default_factory=list)
    detectors: dict[str, ADWIN] = field(default_factory=dict)

    def update(self, model: str, image_ids: list[str], signals: dict[str, np.ndarray]) -> list[str]:
        """Take a batch's signals, each of shape (n,), and return the names of those that drifted."""
        if model != self.model:
            self.model = model
            for name in WORSE:
                self.detectors.pop(name, None)
        self.recent = (self.recent + image_ids)[-SAME_DRIFT:]
        self.quiet += len(image_ids)
        widths = {}
        for name, values in signals.items():
            detector = self.detectors.setdefault(name, ADWIN())
            for value in values:
                before = detector.estimation
                detector.update(float(value))
                harm = WORSE.get(name, 0) * (detector.estimation - before)
                if detector.drift_detected and harm >= 0:
                    widths[name] = int(detector.width)
        if widths and (not self.drifts or self.quiet > SAME_DRIFT):
            # most of the window that ADWIN keeps came after the change
            self.since = self.recent[-min(len(self.recent), max(widths.values()))]
            self.quiet = self.retrained = 0
            self.drifts.append((self.since, []))
        if widths:
            self.drifts[-1][1].extend(widths)
        fresh = bool(self.drifts) and self.quiet < SAME_DRIFT
        self.asked += len(image_ids) * (DRIFT_SHARE if fresh else CALM_SHARE)
        return list(widths)

    def retrain(self, reviewed_since: int) -> bool:
        """Return whether a retraining is due, given the number of images reviewed since the drift."""
        if not self.since or self.retrained == len(ENOUGH) or reviewed_since < ENOUGH[self.retrained]:
            return False
        self.retrained += 1
        return True


def input_signals(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean brightness and color (red minus blue) of images, each of shape (n,), in 0..1."""
    means = pixels.mean((1, 2)) / 255
    return {"brightness": means.mean(1), "color": means[:, 0] - means[:, 2]}

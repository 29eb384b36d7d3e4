"""A trained model of an application, and its file: a zip of arrays without pickle, and the card."""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from leadline import __version__
from leadline.core.documents import parse_json, refuse_damaged, to_json
from leadline.core.errors import InvalidInput, LeadlineError
from leadline.core.frozen import Frozen
from leadline.core.runs import Scale, Value
from leadline.core.trained_model import Feature, ModelPredictions
from leadline.estimators.ports import Array, FittedEstimator, State, nest, unnest
from leadline.estimators.tabular import registry
from leadline.files.arrays import read_array, read_members
from leadline.files.atomic import write_atomically
from leadline.files.read import read_input
from leadline.training.dataset import complete_rows, describe_extrapolation
from leadline.training.model_card import MODEL_SCHEMA, ModelCard, TargetCard
from leadline.uncertainty.conformal import IntervalCalibration

CARD, DIGEST = "card.json", "sha256"
_SEAL, _SEAL_BYTES = b"leadline sha256 ", 100


class ApplicationModel(Frozen):
    """A fitted estimator with its calibration for each target (implements ``TrainedModel``)."""

    card: ModelCard
    fitted: Mapping[str, FittedEstimator]
    calibrations: Mapping[str, IntervalCalibration]

    @property
    def application(self) -> str:
        """Return the name of the campaign or jobs that it was trained on."""
        return self.card.application

    @property
    def features(self) -> Sequence[Feature]:
        """Return the features with their ranges in the runs."""
        return self.card.features

    @property
    def targets(self) -> Sequence[str]:
        """Return the metrics that it predicts."""
        return [card.target for card in self.card.targets]

    @property
    def command(self) -> Sequence[str]:
        """Return the application's command with ``{parameters}``; empty where it is unknown."""
        return self.card.command

    @property
    def basis(self) -> Sequence[str]:
        """Return sentences about the estimator, the runs and the errors of each target."""
        return [sentence for card in self.card.targets for sentence in _basis(card)]

    def predict(self, target: str, rows: Sequence[Mapping[str, Value]], level: float = 0.9) -> ModelPredictions:
        """Predict a target for each row; missing or unknown features widen the interval.

        Raises:
            UnknownName: the model was not trained for that target.
        """
        point, inputs = self._predict(target, rows)
        low, high = self.calibrations[target].interval(point, *inputs, level)
        return ModelPredictions(
            point.tolist(), np.minimum(low, point).tolist(), np.maximum(high, point).tolist(), inputs[1].tolist(), level
        )

    def upper(self, target: str, rows: Sequence[Mapping[str, Value]], risk: float) -> Sequence[float]:
        """Return the value that each row exceeds with probability ``risk``, in the target's unit."""
        point, inputs = self._predict(target, rows)
        return [float(bound) for bound in self.calibrations[target].upper(point, *inputs, risk)]

    def beyond(self, row: Mapping[str, Value]) -> tuple[str, ...]:
        """Return a sentence for each feature outside the range of the runs, farthest first."""
        return describe_extrapolation(complete_rows([row], self.features)[0], self.features)

    def _predict(
        self, target: str, rows: Sequence[Mapping[str, Value]]
    ) -> tuple[Array, tuple[Array, Array, list[str]]]:
        """Return the points of n rows, and the spread, extrapolation and scale of each."""
        card = self.card.of(target)
        completed = complete_rows(rows, self.features)
        predicted = self.fitted[target].predict(completed)
        scales = [_scale(row, card) for row in completed]
        return predicted.point * card.factor, (predicted.spread, predicted.extrapolation, scales)


def save_model(model: ApplicationModel, path: Path) -> None:
    """Write the model whole or not at all, in place of an older one.

    Raises:
        LeadlineError: the file cannot be written.
    """
    members = {CARD: to_json(model.card).encode()}
    for target in model.targets:
        state = nest("estimator", dict(model.fitted[target].dump()))
        state |= nest("calibration", dict(model.calibrations[target].dump()))
        for name, array in state.items():
            array_file = io.BytesIO()
            np.lib.format.write_array(array_file, np.asarray(array), allow_pickle=False)
            members[f"{target}/{name}.npy"] = array_file.getvalue()
    members[DIGEST] = digest_of(members).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            # With one date in every file, the same model gives the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), member, zipfile.ZIP_DEFLATED)
    try:
        write_atomically(path, _sealed(content.getvalue()))
    except OSError as error:
        raise LeadlineError(
            f"the model cannot be written to {path} ({error.strerror}): name another place with --to"
        ) from error


def load_model(path: Path) -> ApplicationModel:
    """Read a model.

    Raises:
        InvalidInput: the file is missing, no model, cut short, changed, or of another version.
    """
    members = _members(path, read_input(path))
    card = _card(members, path)
    if members.pop(DIGEST, b"").decode("ascii", "replace") != digest_of(members):
        raise InvalidInput(f"{path} was changed after it was written, or is damaged: train it again ({card.reproduce})")
    try:
        with refuse_damaged("its arrays do not fit together"):
            states = {target.target: _state(members, target.target) for target in card.targets}
            fitted = {name: registry.load_estimator(unnest("estimator", state)) for name, state in states.items()}
            parts = {name: dict(unnest("calibration", state)) for name, state in states.items()}
            calibrations = {name: IntervalCalibration.load(part) for name, part in parts.items()}
    except InvalidInput as error:
        raise InvalidInput(
            f"{path} holds an estimator that this Leadline {__version__} does not know (it was written by "
            f"{card.leadline}): train it again ({card.reproduce})"
        ) from error
    return ApplicationModel(card, fitted, calibrations)


def _basis(card: TargetCard) -> list[str]:
    runs = ", ".join(f"{part.runs} {scale}" for scale, part in card.scales.items() if part.runs)
    basis = [f"{card.target}: {card.estimator}, trained on {runs} runs"]
    for scale, errors in card.errors.items():
        kind = "test runs" if scale in card.tested else "held-out runs"
        basis.append(
            f"{card.target}: mean error {errors.mape:.1f} % on {errors.runs} {scale} {kind}; {errors.coverage:.0f} % "
            f"of them were within the {100 * card.level:.0f} % interval"
        )
    return basis + [f"{card.target}: {note}" for note in card.notes]


def _scale(row: Mapping[str, Value], card: TargetCard) -> str:
    """Return the scale of a row: scaled down where all its scale features are within the scaled-down runs."""
    if Scale.SCALED_DOWN.value not in card.scales:
        return Scale.FULL_SCALE.value
    for name, (low, high) in card.within.items():
        value = row.get(name)
        if not isinstance(value, int | float) or not low <= value <= high:
            return Scale.FULL_SCALE.value
    return Scale.SCALED_DOWN.value


def digest_of(members: Mapping[str, bytes]) -> str:
    """Return the digest of the names and contents of a model's members."""
    digest = hashlib.sha256()
    for name, content in sorted(members.items()):
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _sealed(archive: bytes) -> bytes:
    """Return a zip archive with a digest of its bytes as its comment, to check before anything is unpacked."""
    unsealed = archive[:-2]  # the length of the comment ends an archive without one
    comment = _SEAL + hashlib.sha256(unsealed).hexdigest().encode()
    return unsealed + len(comment).to_bytes(2, "little") + comment


def _is_broken(content: bytes) -> bool:
    """Return whether an archive has a seal that does not fit. Models of earlier versions have none."""
    at = content.rfind(_SEAL, -_SEAL_BYTES)
    return at >= 0 and hashlib.sha256(content[: at - 2]).hexdigest().encode() != content[at + len(_SEAL) :]


def _members(path: Path, content: bytes) -> dict[str, bytes]:
    foreign = f"{path} is no model of Leadline: name a file that leadline train wrote"
    damaged = f"{path} is cut short or damaged: copy it again, or train it again"
    if _is_broken(content):
        raise InvalidInput(damaged)
    try:
        members = read_members(content, str(path))
    except InvalidInput as error:
        raise InvalidInput(damaged if content[:2] == b"PK" else foreign) from error
    if CARD not in members:
        raise InvalidInput(foreign)
    return members


def _card(members: Mapping[str, bytes], path: Path) -> ModelCard:
    document = parse_json(members[CARD], label=f"{path} is damaged, train it again: its card")
    # The schema comes first: the fields of another version would only confuse.
    fields = document if isinstance(document, dict) else {}
    schema, writer = fields.get("schema"), fields.get("leadline", "another program")
    if schema != MODEL_SCHEMA:
        raise InvalidInput(
            f"{path} has the format {schema or 'unknown'}, written by Leadline {writer}, and this Leadline "
            f"{__version__} reads {MODEL_SCHEMA}: train it again, or use that version"
        )
    try:
        return msgspec.convert(document, ModelCard)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path} has a damaged card ({error}): train it again") from error


def _state(members: Mapping[str, bytes], target: str) -> State:
    return {
        name.removeprefix(f"{target}/").removesuffix(".npy"): read_array(content, name)
        for name, content in members.items()
        if name.startswith(f"{target}/")
    }

"""Records of what each estimator missed: every device counts the same, few steps take in the other phase's."""

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from benchmarks.dnn.measured_steps import KERNELS, OP_MODEL, SPECS, MeasuredSteps
from benchmarks.dnn.selection import _split, records
from leadline.estimators.step_time.selection import Domain, StepGroup, rank_estimators
from leadline.estimators.step_time.step_kernels import BlackBoxKernels

HALF = StepGroup(Domain.VISION, "half", "inference")
TRAINING = StepGroup(Domain.VISION, "half", "training")


def tried(group, count, errors, *, known=False, devices=("RTX 3090", "RTX 4090")):
    """Return steps of one second that each estimator misses by its error, the first device's four in five."""
    dice = np.random.default_rng(0)
    device = np.array([devices[0] if n % 5 else devices[-1] for n in range(count)])
    said = {name: np.exp(-error * np.abs(dice.standard_normal(count))) for name, error in errors.items()}
    return MeasuredSteps(
        group, "somebody's", device, np.array([f"m{n % 8}" for n in range(count)]), np.ones(count), said, known
    )


def test_each_device_counts_the_same_however_many_steps_it_has():
    one = tried(HALF, 100, {SPECS: 0.0})
    one.predicted[SPECS][one.device == "RTX 4090"] = np.exp(-0.5)  # 20 of 100 steps
    (record,) = records([one])
    assert pytest.approx(0.5 * (1 - np.exp(-0.5))) == record.error
    assert pytest.approx(0.5) == record.within
    assert record.devices == ("RTX 3090", "RTX 4090")
    assert (record.vendors, record.architectures) == (("nvidia",), ("Ada", "Ampere"))


def test_nine_in_ten_errors_are_within():
    one = tried(HALF, 2000, {SPECS: 0.1})
    (record,) = records([one])
    assert pytest.approx(0.1645, rel=0.08) == record.within
    assert pytest.approx(0.1, rel=0.08) == record.spread


def test_only_the_law_is_known_to_have_learned_from_a_device():
    found = records(
        [tried(HALF, 100, {OP_MODEL: 0.05, KERNELS: 0.1}, known=True), tried(HALF, 100, {OP_MODEL: 0.2, KERNELS: 0.1})]
    )
    assert {(OP_MODEL, True), (OP_MODEL, False), (KERNELS, False)} == {(one.estimator, one.known) for one in found}
    assert [one.estimator for one in rank_estimators(found, HALF, (OP_MODEL, KERNELS), (OP_MODEL,))] == [
        OP_MODEL,
        KERNELS,
    ]
    assert [one.estimator for one in rank_estimators(found, HALF, (OP_MODEL, KERNELS), ())] == [KERNELS, OP_MODEL]


def test_a_phase_measured_on_one_device_takes_what_a_new_one_adds_from_the_other_phase():
    found = records([
        tried(HALF, 100, {OP_MODEL: 0.05}, known=True), tried(HALF, 100, {OP_MODEL: 0.1}),
        tried(TRAINING, 100, {OP_MODEL: 0.08}, known=True),
    ])  # fmt: skip
    known, new = (next(one for one in found if one.group == TRAINING and one.known is seen) for seen in (True, False))
    assert known.within < new.within < 2 * known.within
    assert "additional error of a new device from inference" in new.source


def test_few_steps_are_joined_by_those_of_the_other_phase():
    few, many = tried(TRAINING, 6, {OP_MODEL: 0.01, SPECS: 0.2}), tried(HALF, 100, {OP_MODEL: 0.3, SPECS: 0.2})
    order = rank_estimators(records([few, many]), TRAINING, (OP_MODEL, SPECS), ())
    assert [one.estimator for one in order] == [SPECS, OP_MODEL]
    assert order[0].steps == 106


def test_an_estimator_that_refuses_some_steps_has_no_record():
    one = tried(HALF, 100, {OP_MODEL: 0.01, SPECS: 0.2})
    one.predicted[OP_MODEL][3] = np.nan
    assert [record.estimator for record in records([one])] == [SPECS]


def test_what_one_half_of_the_models_chooses_answers_for_the_other():
    one = tried(HALF, 400, {OP_MODEL: 0.05, KERNELS: 0.15, SPECS: 0.4})
    split = _split(one, [one])
    assert one.predicted[OP_MODEL].tolist() == split.answers["chosen"].tolist()
    assert 0.85 < np.mean((split.low <= split.measured) & (split.measured <= split.high)) < 0.95
    assert split.how.startswith("chosen by the other half of the models: op law;")


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_the_choice_is_as_good_as_the_best_of_each_group_on_the_measured_data():
    data = Path(os.environ.get("LEADLINE_DATA") or "-")
    if not (data / "timm_steps.parquet").is_file():
        pytest.skip("LEADLINE_DATA names no folder of measured data")
    from benchmarks.dnn.selection import splits

    for one in splits(data, quick=True):
        if len(one.measured) < 20:
            continue
        best = min(np.nanmean(one.errors(name)) for name in list(one.answers)[1:])
        assert np.mean(one.errors()) <= 1.1 * best, one.split


def test_the_black_box_counts_as_knowing_a_device_only_where_it_had_learned_from_steps_there():
    name = BlackBoxKernels.name
    kept = records([tried(HALF, 100, {name: 0.1}, known=True), tried(HALF, 100, {name: 0.2})])
    assert [(one.known, one.error < 0.1) for one in kept] == [(True, True), (False, False)]

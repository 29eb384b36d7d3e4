import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from leadline.core.errors import InvalidInput, UnknownName
from leadline.core.runs import Sample, Scale
from leadline.estimators.tabular.registry import ESTIMATORS, load_estimator

SCALE = ("samples", "epochs")
every = pytest.mark.parametrize("name", ESTIMATORS)


@pytest.fixture(scope="module")
def fitted(history):
    return {name: item.fit(history, scale_features=SCALE) for name, item in ESTIMATORS.items()}


@every
def test_it_answers_alike_after_dump_and_load(name, fitted, history):
    rows = [*(sample.features for sample in history), {"samples": 10**7, "device": "h100"}, {}]
    before, after = fitted[name].predict(rows), load_estimator(fitted[name].dump()).predict(rows)
    assert before.point.tobytes() == after.point.tobytes()
    assert before.spread.tobytes() == after.spread.tobytes()
    assert before.extrapolation.tobytes() == after.extrapolation.tobytes()
    assert name == fitted[name].name


@every
def test_its_state_is_arrays_without_objects(name, fitted, history):
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "fiuU" for array in fitted[name].dump().values())


@every
def test_the_same_seed_gives_the_same_estimator(name, fitted, history):
    again = ESTIMATORS[name].fit(history, scale_features=SCALE).dump()
    assert all(array.tobytes() == again[key].tobytes() for key, array in fitted[name].dump().items())


@every
def test_an_empty_question_has_an_empty_answer(name, fitted, history):
    assert fitted[name].predict([]).point.shape == (0,)


@every
@pytest.mark.parametrize("count", range(6))
def test_too_few_runs_are_answered_by_how_many_are_needed(name, count, history):
    with pytest.raises(InvalidInput, match=rf"{name} needs at least \d+ finished runs .* there are {count}"):
        ESTIMATORS[name].fit([*history[:count], *(replace(case, censored=True) for case in history[:9])])


@every
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_is_no_number_above_zero_is_refused(name, value, history):
    with pytest.raises(InvalidInput, match=r"run r7 is .* leave it out"):
        ESTIMATORS[name].fit([*history, replace(history[0], value=value, run_id="r7")])


def test_an_estimator_that_is_not_there_is_answered_with_the_closest():
    with pytest.raises(UnknownName, match="boosting"):
        load_estimator({"estimator": np.array(["bosting"])})


def test_asking_needs_numpy_alone():
    program = (
        "import sys; import leadline.estimators.tabular.registry; "
        "import json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"sklearn", "scipy", "torch", "pandas"} & set(json.loads(said))


def test_quantiles_follow_the_local_scatter_of_runs():
    chance = np.random.default_rng(3)
    kinds, widths = chance.choice(["calm", "wild"], 400), chance.uniform(1, 10, 400)
    values = widths * np.exp(np.where(kinds == "wild", 0.3, 0.03) * chance.standard_normal(400))
    runs = [Sample({"kind": str(kind), "width": float(width)}, float(value), Scale.SCALED_DOWN)
            for kind, width, value in zip(kinds, widths, values, strict=True)]  # fmt: skip
    fitted = ESTIMATORS["quantiles"].fit(runs)
    asked = [[{"kind": kind, "width": width} for width in np.linspace(2, 9, 20).tolist()] for kind in ("calm", "wild")]
    calm, wild = (float(np.median(fitted.predict(rows).spread)) for rows in asked)
    assert 0.2 < wild < 0.4
    assert calm < 0.5 * wild

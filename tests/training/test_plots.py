"""The learning curve and the plots."""

import pytest
from made_runs import campaign

from leadline.core.errors import LeadlineError
from leadline.training.build import TrainingOrigin, build_model
from leadline.training.fitting import learning_curve
from leadline.training.plots import FORMATS, _even, draw_all
from leadline.training.records import TrainingOptions, run_records


@pytest.fixture(scope="module")
def straight(quick):
    """Return a model by the estimator that fits at once."""
    targets = TrainingOptions(targets=("elapsed_s", "host_memory_bytes"))
    only = {"linear": quick["linear"]}
    return build_model(
        run_records(campaign(80, 24)), only, TrainingOrigin("runs", "2026-01-02", "leadline train runs"), targets
    )


def test_a_learning_curve_rises_in_cost_and_falls_in_error(straight):
    _, (_, memory) = straight
    steps = learning_curve(memory)
    assert [step.cost_s for step in steps] == sorted(step.cost_s for step in steps)
    assert steps[-1].runs > 3 * steps[0].runs
    assert steps[0].mape > steps[-1].mape


def test_every_plot_of_every_target_is_written_in_both_formats(straight, tmp_path):
    model, trained = straight
    files = draw_all(model.card, trained, tmp_path / "plots")
    kinds = [f"net-{target}-{kind}" for target in model.targets for kind in ("predicted", "error", "learning")]
    assert sorted(f"{kind}.{form}" for kind in kinds for form in FORMATS) == sorted(file.name for file in files)
    assert all(file.stat().st_size > 10_000 for file in files)
    assert files[0].read_bytes().startswith(b"\x89PNG")


def test_an_unwritable_folder_is_an_error_with_a_fix(straight, tmp_path):
    (tmp_path / "plots").write_text("a file")
    model, trained = straight
    with pytest.raises(LeadlineError, match="name another with --plots"):
        draw_all(model.card, trained[:1], tmp_path / "plots")


@pytest.mark.parametrize(
    ("low", "high", "base"), [(77e6, 170e6, 2.0), (1e9, 1.1e9, 2.0), (61, 75, 10.0), (0.3, 0.9, 10.0)]
)
def test_even_ticks_are_few_and_within(low, high, base):
    ticks = _even(low, high, base)
    assert 3 <= len(ticks) <= 10
    assert all(low <= tick <= high for tick in ticks)

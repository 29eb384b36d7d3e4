"""Training finds what steps take, gives the same network from the same seed, and writes a file and its card."""

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from benchmarks.dnn.gnn_network import onnx_network  # noqa: E402
from benchmarks.dnn.train_gnn import GnnTraining, card_of, figures, main, network_steps, train_network, write  # noqa: E402
from benchmarks.shipped.cards import NetworkCard  # noqa: E402
from leadline.training.shipped_models import load_network  # noqa: E402

ALL = np.arange(3)
SHORT = GnnTraining(epochs=60, batch=3)


@pytest.fixture(scope="module")
def network(graph_rows):
    return train_network(graph_rows, ALL, SHORT)


def test_training_brings_the_steps_near_what_was_measured(graph_rows, network):
    untrained = network_steps(
        graph_rows, train_network(graph_rows, ALL, GnnTraining(epochs=1, batch=3, rate=1e-9)), ALL
    )
    measured = graph_rows.steps.step_s
    before, after = (
        np.abs(np.log(steps / measured)).mean() for steps in (untrained, network_steps(graph_rows, network, ALL))
    )
    assert before > 0.3
    assert after < before / 3


def test_the_same_seed_gives_the_same_network(graph_rows):
    how = GnnTraining(epochs=3, batch=2)
    first, second = (network_steps(graph_rows, train_network(graph_rows, ALL, how), ALL) for _ in range(2))
    assert first.tolist() == second.tolist()
    another = network_steps(graph_rows, train_network(graph_rows, ALL, GnnTraining(epochs=3, batch=2, seed=1)), ALL)
    assert first.tolist() != another.tolist()


def test_what_is_written_is_read_and_says_the_same(tmp_path, graph_rows, network):
    card = card_of(graph_rows, SHORT, *[graph_rows.steps.step_s * 1.1] * 2)
    write(tmp_path, onnx_network(network, graph_rows.batch(ALL)), card)
    assert card == msgspec.json.decode((tmp_path / "gnn.json").read_bytes(), type=NetworkCard)
    predicted = load_network((tmp_path / "gnn.onnx").read_bytes(), "gnn.onnx").step_s(graph_rows.batch(ALL))
    assert pytest.approx(network_steps(graph_rows, network, ALL), rel=1e-4) == predicted


def test_figures_are_percentages():
    errors = figures(np.array([1.0, 1.0, 2.0]), np.array([1.1, 0.8, 2.0]))
    assert pytest.approx(errors) == {"mape": 10.0, "median": 10.0, "p90": 18.0, "n": 3.0}


def test_a_wrong_number_of_arguments_is_told(capsys):
    assert main(["data"]) == 1
    assert "1 arguments: give" in capsys.readouterr().err

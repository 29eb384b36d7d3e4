"""Lengths of samples decide how long a mean and the longest batch are."""

import numpy as np
import pytest

from leadline.app.workloads.options import WorkloadOptions, length_quantiles, read_lengths
from leadline.app.workloads.read import read_workload
from leadline.core.errors import InvalidInput
from leadline.core.workload import Lengths


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    return str(path)


def test_batches_of_one_sample_are_as_long_as_a_mean_sample():
    assert pytest.approx(20.0) == Lengths((10, 20, 30), 30).padded_mean(1)


def test_a_batch_is_padded_to_its_longest_sample():
    """Of two samples of which each is 10 or 30 long, the longer is 10 in one case of four."""
    assert pytest.approx(0.25 * 10 + 0.75 * 30) == Lengths((10, 30), 30).padded_mean(2)


def test_the_mean_of_padded_batches_is_that_of_batches_drawn_from_the_data():
    generator = np.random.default_rng(0)
    tokens = np.ceil(generator.lognormal(5.5, 0.8, 20_000)).astype(int)
    drawn = generator.choice(tokens, (20_000, 8)).max(axis=1).mean()
    assert pytest.approx(drawn, rel=0.02) == length_quantiles(tokens).padded_mean(8)


def test_many_lengths_are_few_quantiles_that_keep_the_longest():
    found = length_quantiles(np.arange(1, 100_001))
    assert len(found.quantiles) == 200
    assert (found.quantiles[-1], found.longest) == (99_751, 100_000)
    assert pytest.approx(50_000, rel=0.01) == found.padded_mean(1)


def test_a_file_of_lengths_sets_the_batch_lengths_up_to_the_limit(config, tmp_path):
    (tmp_path / "lengths.txt").write_text("100\n300\n\n900\n")
    whole, cut = (
        read_workload([config], WorkloadOptions(lengths=str(tmp_path / "lengths.txt"), seq_max=most))
        for most in (None, 512)
    )
    assert whole.longest == 900
    assert (cut.longest, cut.lengths.quantiles) == (512, (100, 300, 512))


def test_an_array_of_numpy_is_read_like_a_text(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([30, 10]))
    assert Lengths((10, 30), 30) == read_lengths(tmp_path / "lengths.npy")


def test_a_workload_file_names_lengths_beside_itself(config, tmp_path):
    (tmp_path / "lengths.txt").write_text("7\n")
    (tmp_path / "job.toml").write_text(f'model = "{config}"\nlengths = "lengths.txt"\n')
    assert read_workload([str(tmp_path / "job.toml")]).longest == 7


def test_the_longest_alone_is_taken_for_every_batch(config):
    work = read_workload([config], WorkloadOptions(seq_max=700))
    assert (work.sequence, work.longest) == (700, 700)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seq": 900, "seq_max": 800}, "must be at least --seq"),
        ({"seq_max": 800, "generate": 3, "phase": "inference"}, "prompts of one length"),
        ({"lengths": "nowhere.txt"}, "nowhere.txt"),
        ({"seq_max": 0}, "at least 1"),
    ],
)
def test_invalid_lengths_are_refused(config, options, said):
    with pytest.raises(InvalidInput, match=said):
        read_workload([config], WorkloadOptions(**options))


@pytest.mark.parametrize("text", ["12\nabc\n", "", "0\n"])
def test_a_file_without_lengths_is_refused(tmp_path, text):
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"lengths\.txt"):
        read_lengths(path)


def test_lengths_are_refused_for_a_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(InvalidInput, match="batches of a script"):
        read_workload(["python", str(script)], WorkloadOptions(seq_max=128))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00\x05\x00((((\n", b"hello"],
)
def test_a_broken_array_is_refused(tmp_path, content):
    path = tmp_path / "lengths.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"^--lengths .* is not a numpy array: "):
        read_lengths(path)


def test_a_number_of_thousands_of_digits_is_too_long(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("1" * 5000)
    with pytest.raises(InvalidInput, match="has lengths from 2000000000 to 2000000000"):
        read_lengths(path)

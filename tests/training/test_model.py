"""The file of a model: written whole, read back the same, and checked for damage."""

import os
import resource
import subprocess
import sys
import zipfile

import msgspec
import numpy as np
import pytest
from made_runs import walltime_s

from leadline.core.errors import InvalidInput, LeadlineError, UnknownName
from leadline.training.model import load_model, save_model

ROW = {"epochs": 30, "samples": 50000, "kind": "b", "cores": 2}


@pytest.fixture
def path(tmp_path, built):
    save_model(built[0], tmp_path / "net.npz")
    return tmp_path / "net.npz"


def rewrite(path, change):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_loaded_model_predicts_the_same_and_has_the_same_card(path, built):
    model = load_model(path)
    assert built[0].card == model.card
    for target in ("elapsed_s", "host_memory_bytes"):
        assert built[0].predict(target, [ROW, {**ROW, "cores": 1}]) == model.predict(target, [ROW, {**ROW, "cores": 1}])
    assert [one.name for one in path.parent.iterdir()] == ["net.npz"]


def test_predicted_intervals_contain_the_truth(path):
    said = load_model(path).predict("elapsed_s", [ROW])
    assert said.low[0] <= walltime_s(30, 50000, 2, "b") <= said.high[0]
    assert said.low[0] < said.point[0] < said.high[0]
    assert said.beyond == [0.0]


def test_extrapolation_gives_a_wide_interval_and_a_sentence(path):
    model = load_model(path)
    far = {**ROW, "samples": 500_000_000}
    near, wide = model.predict("elapsed_s", [ROW]), model.predict("elapsed_s", [far])
    assert wide.high[0] / wide.low[0] > 1.05 * near.high[0] / near.low[0]
    assert wide.beyond[0] > 1
    largest = next(feature.high for feature in model.features if feature.name == "samples")
    assert (
        f"samples = 5e+08 is {5e8 / largest:.3g} times the largest that was run (1000 to {largest:g})",
    ) == model.beyond(far)
    new = {**ROW, "kind": "c"}
    assert model.predict("elapsed_s", [new]).high[0] > 2 * near.high[0] / near.point[0]
    assert model.beyond(new) == ("kind = c was never run; runs had a, b",)


def test_the_upper_bound_of_a_risk_rises_as_the_risk_falls(path):
    bounds = [load_model(path).upper("elapsed_s", [ROW], risk)[0] for risk in (0.2, 0.05, 0.01)]
    assert sorted(bounds) == bounds


def test_an_untrained_target_is_an_error(path):
    with pytest.raises(UnknownName, match="this model predicts elapsed_s, host_memory_bytes"):
        load_model(path).predict("unit_s", [ROW])


def test_no_array_of_the_file_needs_pickle(path):
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
    with np.load(path, allow_pickle=False) as arrays:
        for name in names:
            assert arrays[name.removesuffix(".npy")].dtype.kind in "fiUb"


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_an_error(path, share):
    held = path.read_bytes()
    path.write_bytes(held[: int(share * len(held)) + 2])
    with pytest.raises(InvalidInput, match="cut short or damaged"):
        load_model(path)


def test_a_changed_byte_is_detected(path, built):
    held, seen = path.read_bytes(), 0
    for at in range(200, len(held) - 400, len(held) // 12):
        path.write_bytes(held[:at] + bytes([held[at] ^ 0x55]) + held[at + 1 :])
        try:
            card = load_model(path).card
        except InvalidInput as error:
            assert "damaged" in str(error) or "is no model" in str(error)  # noqa: PT017 - one of two sentences
            seen += 1
        else:  # a date or another part of the archive that says nothing
            assert built[0].card == card
    assert seen >= 8


def test_a_manipulated_array_is_detected(path):
    def change(members):
        members["card.json"] = members["card.json"].replace(b'"seed": 0', b'"seed": 1')

    rewrite(path, change)
    with pytest.raises(InvalidInput, match="was changed after it was written"):
        load_model(path)


def test_a_model_of_another_version_is_an_error_with_a_fix(path):
    def change(members):
        card = msgspec.json.decode(members["card.json"])
        members["card.json"] = msgspec.json.encode(card | {"schema": "leadline.model/9", "leadline": "7.0"})

    rewrite(path, change)
    with pytest.raises(InvalidInput, match=r"leadline.model/9, written by Leadline 7.0, and this Leadline"):
        load_model(path)


def test_other_files_are_not_models(path, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(InvalidInput, match=r"other.npz is no model of Leadline"):
        load_model(tmp_path / "other.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InvalidInput, match=r"text.npz is no model of Leadline"):
        load_model(tmp_path / "text.npz")
    with pytest.raises(InvalidInput, match="No such file"):
        load_model(tmp_path / "absent.npz")
    with pytest.raises(InvalidInput, match="name a file in it"):
        load_model(tmp_path)


def test_a_failed_write_keeps_the_old_model(path, built, monkeypatch):
    held = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LeadlineError, match="No space left on device"):
        save_model(built[0], path)
    assert held == path.read_bytes()
    assert [one.name for one in path.parent.iterdir()] == ["net.npz"]


def test_predicting_needs_neither_scipy_nor_scikit_learn_and_starts_fast(path):
    code = (
        "import sys, time; from pathlib import Path; from leadline.training.model import load_model\n"
        f"rows = [{ROW!r} | {{'samples': 1000 * n + 1000}} for n in range(1000)]\n"
        "said = load_model(Path(sys.argv[1])).predict('elapsed_s', rows)\n"
        "assert len(said.point) == 1000\n"
        "heavy = {'scipy', 'sklearn', 'matplotlib', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert taken_s < 2.0  # 0.3 s on an idle machine


def test_the_digest_is_checked_before_anything_is_unpacked(path, monkeypatch):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)

    def unpack(*_):
        raise AssertionError("a damaged model was unpacked")

    monkeypatch.setattr("leadline.training.model.read_members", unpack)
    with pytest.raises(InvalidInput, match="is cut short or damaged"):
        load_model(path)


def test_a_model_without_a_seal_is_read(path, built):
    rewrite(path, dict)
    assert load_model(path).card == built[0].card

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("river")
EXAMPLE = Path(__file__).parents[3] / "examples/field_station"
sys.path.insert(0, str(EXAMPLE))


@pytest.fixture(scope="session")
def first_model(tmp_path_factory):
    import model
    import numpy as np
    import scenes

    season = scenes.Season(seed=5)
    archive = [season.scene(number) for number in range(-120, 0)]
    labels = np.array([scenes.CLASSES.index(scene.label) for scene in archive])
    pixels = np.stack([scene.pixels for scene in archive])
    path = tmp_path_factory.mktemp("model") / "first.pt"
    model.fit(pixels, labels, np.ones(len(labels)), passes=1, name="first").save(path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, first_model):
    """The pipeline's folder with a deployed model, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge").mkdir()
    (tmp_path / "edge/model.pt").write_bytes(first_model.read_bytes())
    return tmp_path


@pytest.fixture
def run_stage(folder, monkeypatch):
    """Run a stage as the pipeline does: events in, metrics out."""

    def run(main, files=(), *, batch=1, arguments=()):
        events, result = folder / f"run-{batch}.jsonl", folder / "result.json"
        events.write_text("".join(json.dumps({"id": str(n), "file": str(f)}) + "\n" for n, f in enumerate(files)))
        monkeypatch.setenv("LEADLINE_PIPELINE_EVENTS", str(events))
        monkeypatch.setenv("LEADLINE_PIPELINE_RESULT", str(result))
        monkeypatch.setattr(sys, "argv", ["stage", *arguments])
        main()
        return json.loads(result.read_text())["metrics"]

    return run


@pytest.fixture
def write_images(folder):
    """Write images of a season as files that an event may name."""
    import scenes

    def write(numbers):
        season, files = scenes.Season(seed=5), []
        for number in numbers:
            files.append(folder / f"event-{number}.jpg")
            files[-1].write_bytes(season.scene(number).jpeg())
        return files

    return write

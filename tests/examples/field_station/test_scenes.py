import io

import numpy as np
import pytest
import scenes
from PIL import Image


def test_an_image_follows_from_seed_and_number():
    first, again = scenes.Season(seed=5).scene(77), scenes.Season(seed=5).scene(77)
    assert (first.pixels == again.pixels).all()
    assert first.label == scenes.Season(seed=5).label(77)
    assert (first.pixels != scenes.Season(seed=6).scene(77).pixels).any()


def test_a_file_carries_its_id_and_not_its_label():
    scene = next(s for s in map(scenes.Season(seed=5).scene, range(50)) if s.label == "badger")
    content = scene.jpeg()
    image_id, pixels = scenes.read_jpeg(content)
    assert image_id == scene.image_id
    assert scenes.number_of(image_id) in range(50)
    assert np.abs(pixels.astype(int) - scene.pixels).mean() < 8
    assert b"badger" not in content


@pytest.mark.parametrize("keep", [0, 10, 300, 700])
def test_a_file_broken_off_is_corrupt(keep):
    content = scenes.Season(seed=5).scene(1).jpeg()
    with pytest.raises((OSError, SyntaxError, ValueError)):
        scenes.read_jpeg(content[:keep])


def test_an_image_of_another_size_is_refused():
    file = io.BytesIO()
    Image.new("RGB", (50, 40)).save(file, "JPEG")
    with pytest.raises(ValueError, match="50x40"):
        scenes.read_jpeg(file.getvalue())


def test_most_frames_are_empty_and_all_species_come():
    labels = [scenes.Season(seed=5).label(number) for number in range(2000)]
    assert 0.5 < labels.count("empty") / 2000 < 0.62
    assert set(labels) == set(scenes.CLASSES)


def test_drift_changes_the_look_by_its_strength():
    changed = []
    for strength in (0.0, 0.3, 1.0):
        season = scenes.Season(seed=5, strength=strength)
        early, late = (np.mean([season.scene(n + i).pixels.mean() for i in range(60)]) for n in (0, 5900))
        changed.append(late - early)
    assert abs(changed[0]) < 10
    assert changed[0] < changed[1] < changed[2]

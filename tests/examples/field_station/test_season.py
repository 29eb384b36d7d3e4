import pytest
import scenes
import season

pytestmark = pytest.mark.slow


def test_a_season_accounts_for_every_image_under_each_policy(monkeypatch):
    monkeypatch.setattr(season, "ARCHIVE", 300)
    monkeypatch.setattr(season, "FIRST_PASSES", 5)
    monkeypatch.setattr(season, "PASSES", 1)
    courses = season.compare(scenes.Season(seed=100, images=1500))
    for course in courses.values():
        assert sum(course.counts.values()) == 1500
        assert len(course.right) == 1500
    assert courses["never"].retrained == []
    assert courses["triggered"].drifts
    assert len(courses["scheduled"].retrained) == len(courses["triggered"].retrained) > 0
    assert courses["scheduled"].reviewed == pytest.approx(courses["triggered"].reviewed, abs=10)

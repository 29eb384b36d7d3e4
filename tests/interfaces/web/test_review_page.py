"""The review page: images of the queue alone are shown, and each answer is kept once."""

import json
from urllib.parse import quote

import httpx
import pytest

from leadline.interfaces.web.settings import WebSettings
from tests.interfaces.web.conftest import TOKEN, served
from tests.interfaces.web.test_injection import HOSTILE, assert_harmless
from tests.support.recorded_season import PIXEL, record_season

PAGE = "/pipelines/traps/review/label"
SIGNED_IN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def queue(web_folder):
    if not (web_folder / "traps.toml").exists():
        record_season(web_folder)
    folder = web_folder / "season" / "queue"
    (folder / "answers.jsonl").unlink(missing_ok=True)
    return folder


@pytest.fixture
def acting(web_folder, queue):
    with (
        served(WebSettings(TOKEN, web_folder, allow_submit=True)) as address,
        httpx.Client(base_url=address, headers=SIGNED_IN, timeout=60) as client,
    ):
        yield client


def add(queue, identity, file):
    with (queue / "queue.jsonl").open("a") as stream:
        stream.write(json.dumps({"id": identity, "file": file}) + "\n")


def test_an_image_is_shown_with_its_proposed_label_and_kept_with_its_answer(acting, queue):
    html = acting.get(PAGE).text
    assert "3 files wait." in html
    assert "<option selected>deer</option>" in html
    image = acting.get(f"{PAGE}/file", params={"id": "2"})
    assert (image.content, image.headers["content-type"]) == (PIXEL, "image/png")
    assert acting.post(PAGE, data={"id": "2", "label": "fox"}).status_code == 200
    (answer,) = [json.loads(line) for line in (queue / "answers.jsonl").read_text().splitlines()]
    assert (answer["id"], answer["label"]) == ("2", "fox")
    assert acting.post(PAGE, data={"id": "2", "label": "deer"}).status_code == 404
    assert acting.get(f"{PAGE}/file", params={"id": "2"}).status_code == 404
    assert "2 files wait." in acting.get(PAGE).text
    assert "2 files of label wait for review" in acting.get("/pipelines/traps").text


@pytest.mark.parametrize(
    ("form", "status"),
    [({"id": "1", "label": "wolf"}, 422), ({"id": "9", "label": "fox"}, 404), ({}, 422), ({"id": "1"}, 422)],
)
def test_an_answer_that_cannot_be_kept_is_refused(acting, queue, form, status):
    assert acting.post(PAGE, data=form).status_code == status
    assert not (queue / "answers.jsonl").exists()


def test_without_consent_of_the_server_no_answer_is_kept(client, queue):
    assert "Confirm" not in client.get(PAGE).text
    answer = client.post(PAGE, data={"id": "1", "label": "fox"})
    assert answer.status_code == 403
    assert "--allow-submit" in answer.json()["detail"]
    assert not (queue / "answers.jsonl").exists()


def test_no_file_outside_the_queue_and_no_script_is_shown(client, queue, web_folder):
    (web_folder / "secret.png").write_bytes(PIXEL)
    (queue / "link.png").symlink_to(web_folder / "secret.png")
    (queue / "drawing.svg").write_text("<svg onload='alert(1)'/>")
    whole = (queue / "queue.jsonl").read_text()
    for number, file in enumerate(("../../secret.png", str(web_folder / "secret.png"), "link.png", "drawing.svg")):
        add(queue, f"bad{number}", file)
        assert client.get(f"{PAGE}/file", params={"id": f"bad{number}"}).status_code == 422, file
    (queue / "queue.jsonl").write_text(whole)
    assert client.get("/pipelines/traps/review/train").status_code == 404


def test_names_and_labels_of_the_queue_are_shown_as_text(client, queue):
    whole = (queue / "queue.jsonl").read_text()
    for text in HOSTILE:
        with (queue / "queue.jsonl").open("a") as stream:
            stream.write(json.dumps({"id": text, "file": "1.png", "label": text}) + "\n")
        assert client.get(f"{PAGE}/file?id={quote(text)}").status_code == 200
    assert_harmless(client.get(PAGE).text)
    (queue / "queue.jsonl").write_text('{"id": 1}\n')
    assert client.get(PAGE).status_code == 422
    (queue / "queue.jsonl").write_text(whole)

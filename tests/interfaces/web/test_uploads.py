"""Uploaded files: their limit, what is left of one that is refused, and their end with the server."""

import logging
import os
import socket
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from leadline.app import settings as folders
from leadline.interfaces.web.problems import MEDIA_TYPE
from leadline.interfaces.web.settings import WebSettings
from tests.interfaces.web.conftest import TOKEN, served

MIB = 2**20
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
PATH = "/api/v1/uploads/model.onnx"


@pytest.fixture
def small(web_folder):
    """The address of a server that takes files of 4 MiB."""
    with served(WebSettings(TOKEN, web_folder, most_upload_bytes=4 * MIB)) as address:
        yield address


@contextmanager
def begun(address, *headers, method="PUT", path=PATH):
    """Yield a connection on which the headers of a request are sent, and no body yet."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        lines = (
            f"{method} {path} HTTP/1.1",
            f"Host: {place.netloc}",
            f"Authorization: Bearer {TOKEN}",
            *headers,
            "",
            "",
        )
        connection.sendall("\r\n".join(lines).encode())
        yield connection


def chunk(size):
    return b"%x\r\n%s\r\n" % (size, bytes(size))


def kept():
    """Return the files that are kept, and parts of files."""
    # unlike a glob, a walk passes over a folder that goes meanwhile
    return [Path(folder, name) for folder, _, names in os.walk(folders.uploads_dir()) for name in names]


def none_kept():
    """Return whether all files go within ten seconds."""
    for _ in range(200):
        if not kept():
            return True
        time.sleep(0.05)
    return False


def test_an_onnx_file_of_20_mib_is_uploaded_and_estimated(web_folder, tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs the [onnx] extra")
    numpy = pytest.importorskip("numpy")
    width = 2300
    weights = onnx.numpy_helper.from_array(numpy.random.default_rng(1).random((width, width), "float32"), "w")
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", width])] for name in "xy"
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weights]
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), file := tmp_path / "model.onnx")
    assert file.stat().st_size > 20 * MIB
    with (
        served(WebSettings(TOKEN, web_folder)) as address,
        httpx.Client(base_url=address, headers=HEADERS, timeout=60) as client,
        file.open("rb") as stream,
    ):
        uploaded = client.put(PATH, content=stream)
        assert uploaded.status_code == 201, uploaded.text
        path = Path(uploaded.json()["workload"])
        assert path.read_bytes() == file.read_bytes()
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
        question = {"workload": str(path), "on": ["T4"], "phase": "inference"}
        answer = client.post("/api/v1/estimate", json=question)
    assert answer.status_code == 200, answer.text
    assert answer.json()["gpu_memory_bytes"]["point"] > 4 * width**2


def test_a_file_beyond_the_limit_is_refused_at_once_and_leaves_nothing(small):
    with begun(small, "Transfer-Encoding: chunked") as connection:
        for _ in range(5):  # and no end of the body
            connection.sendall(chunk(MIB))
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert MEDIA_TYPE.encode() in answer
    assert b"4,194,304 bytes" in answer
    assert none_kept()


def test_a_file_that_announces_more_than_the_limit_is_refused_before_its_body(small):
    with begun(small, f"Content-Length: {4 * MIB + 1}") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert none_kept()


def test_a_file_of_exactly_the_limit_is_taken(small):
    assert httpx.put(small + PATH, content=bytes(4 * MIB), headers=HEADERS).status_code == 201


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", PATH), ("PUT", "/api/v1/uploads"), ("POST", "/api/v1/estimate"), ("PUT", "/x" + PATH),
     ("POST", "/chat/ask"), ("PUT", "/api/v1/uploads/../estimate")],
)  # fmt: skip
def test_all_other_bodies_keep_the_small_limit(small, method, path):
    headers = {**HEADERS, "Content-Type": "application/json"}
    assert httpx.request(method, small + path, content=bytes(3 * MIB), headers=headers).status_code == 413


@pytest.mark.parametrize("prefix", ["", "/node/n1/8642"], ids=["path cut", "path kept"])
def test_behind_a_path_uploads_have_the_large_limit(web_folder, prefix):
    with served(WebSettings(TOKEN, web_folder, root_path="/node/n1/8642")) as address:
        answer = httpx.put(f"{address}{prefix}{PATH}", content=bytes(3 * MIB), headers=HEADERS)
    assert answer.status_code == 201


@pytest.mark.parametrize("path", [PATH, "/api/v1/uploads/model.txt"])
def test_a_client_that_goes_leaves_nothing_and_is_no_fault(small, caplog, path):
    with caplog.at_level(logging.WARNING):
        with begun(small, f"Content-Length: {2 * MIB}", path=path) as connection:
            connection.sendall(bytes(MIB))
            time.sleep(0.3)
        assert none_kept()
        time.sleep(0.3)
    assert caplog.records == []


def test_a_long_body_beside_a_stream_of_events_is_no_fault(small, caplog):
    with caplog.at_level(logging.WARNING):
        with begun(small, "Transfer-Encoding: chunked", method="GET", path="/api/v1/events") as connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            for _ in range(4):
                connection.sendall(chunk(MIB))
            time.sleep(0.3)
        time.sleep(0.5)
    assert caplog.records == []


def test_a_client_that_goes_amid_a_question_is_no_fault(small, caplog):
    headers = ("Content-Type: application/json", "Content-Length: 100")
    with caplog.at_level(logging.WARNING):
        with begun(small, *headers, method="POST", path="/api/v1/systems") as connection:
            connection.sendall(b'{"name"')
            time.sleep(0.3)
        time.sleep(0.5)
    assert caplog.records == []


def test_a_form_is_refused_instead_of_kept_with_its_boundaries(small):
    answer = httpx.put(small + PATH, files={"file": ("model.onnx", b"x")}, headers=HEADERS)
    assert answer.status_code == 415
    assert "curl -T" in answer.json()["detail"]
    assert kept() == []


def test_files_end_with_their_server(web_folder):
    with served(WebSettings(TOKEN, web_folder)) as address:
        path = Path(httpx.put(address + PATH, content=b"x", headers=HEADERS).json()["workload"])
        assert path.exists()
    assert not path.parent.exists()


def test_no_more_bytes_are_kept_than_eight_of_the_largest_files_have(web_folder):
    with served(WebSettings(TOKEN, web_folder, most_upload_bytes=MIB)) as address:
        answers = [httpx.put(address + PATH, content=bytes(MIB), headers=HEADERS) for _ in range(9)]
    assert [answer.status_code for answer in answers] == [201] * 8 + [422]
    assert "8 files of 8.00 MiB are kept" in answers[-1].json()["detail"]


def test_uploads_at_the_same_time_count_as_files_of_the_largest_size(small):
    with ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(begun(small, f"Content-Length: {MIB}"))
            connection.sendall(b"x")
        while len(kept()) < 8:
            time.sleep(0.05)
        assert httpx.put(small + PATH, content=b"x", headers=HEADERS).status_code == 422
    assert none_kept()
    assert httpx.put(small + PATH, content=b"x", headers=HEADERS).status_code == 201


def test_the_document_names_the_limit(small):
    document = httpx.get(f"{small}/api/v1/openapi.json", headers=HEADERS).json()
    body = document["paths"]["/api/v1/uploads/{name}"]["put"]["requestBody"]
    assert "4,194,304 bytes" in body["description"]

"""``leadline web`` as a process: its address, its token file, its end."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn", reason="needs the [web] extra")


def started(tmp_path, *options):
    environment = {**os.environ, "LEADLINE_DATA_DIR": str(tmp_path / "data")}
    process = subprocess.Popen(
        [sys.executable, "-m", "leadline", "web", "--port", "0", *options], cwd=tmp_path, env=environment, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    line = process.stderr.readline()
    address = re.search(r"http://\S+", line)
    assert address, line + process.stderr.read()
    return process, address[0]


def test_the_printed_address_opens_the_server_for_its_user_alone_until_it_is_ended(tmp_path):
    process, address = started(tmp_path)
    with httpx.Client(follow_redirects=True) as browser:
        assert browser.get(address).status_code != 401
        base = address.partition("?")[0]
        assert browser.get(f"{base}api/v1/openapi.json").status_code == 200
        assert httpx.get(f"{base}api/v1/openapi.json").status_code == 401
    assert (tmp_path / "data" / "web-token").stat().st_mode & 0o077 == 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)


def peak_bytes(process):
    """Return the most memory that a process has had (``VmHWM``)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_an_upload_up_to_the_given_limit_is_never_whole_in_memory(tmp_path):
    process, address = started(tmp_path, "--no-token", "--upload-limit-mib", "256")
    url, piece = f"{address}api/v1/uploads/model.onnx", bytes(2**20)
    try:
        assert httpx.put(url, content=piece).status_code == 201
        before = peak_bytes(process)
        answer = httpx.put(url, content=(piece for _ in range(256)), timeout=60)
        assert answer.status_code == 201, answer.text
        assert Path(answer.json()["workload"]).stat().st_size == 256 * 2**20
        assert peak_bytes(process) - before < 32 * 2**20
        assert httpx.put(url, content=(piece for _ in range(257)), timeout=60).status_code == 413
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert list((tmp_path / "data" / "uploads").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--no-token", "--host", "0.0.0.0"), "without a token"),  # noqa: S104 - refused
        (("--root-path", "node/1"), "must begin with /"),
        (("--upload-limit-mib", "0"), "--upload-limit-mib"),
        (("--host", "no.such.host.invalid"), "cannot listen"),
    ],
)
def test_settings_that_cannot_be_used_end_in_one_sentence(tmp_path, options, words):
    words_ = [sys.executable, "-m", "leadline", "web", "--port", "0", *options]
    ended = subprocess.run(words_, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr

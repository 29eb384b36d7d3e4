"""Throughput of ingestion: images from an MQTT broker into the journal of a running pipeline."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.results import BenchmarkRow, at_least
from leadline.core.errors import LeadlineError
from leadline.pipelines.journal import JOURNAL, PipelineJournal
from leadline.pipelines.sources import EVENTS_FOLDER
from tests.support.mqtt_broker import Broker, mqtt_broker, why_no_mosquitto

NAME = "images ingested from broker to journal"
TARGET = 200.0  # images per second on two cores
IMAGE_BYTES = 12_000  # a JPEG of 320 × 240 pixels
IMAGES, QUICK_IMAGES = 6000, 1000
MOST_S = 300.0
PIPELINE = """
[pipeline]
name = "ingestion"
folder = "season"
[events.images]
mqtt = {{ broker = "127.0.0.1:{port}", topic = "traps/+/images" }}
[stages.label]
command = "{python} -c 'import time; time.sleep(0.5)'"
on = "images"
batch = {{ most = 250 }}
waiting = 20000
"""


def ingestion_rows(folder: Path, *, quick: bool) -> list[BenchmarkRow]:
    """Publish distinct images to a real broker while a pipeline runs, and time them until all are in its journal."""
    if reason := why_no_mosquitto():
        return [BenchmarkRow(NAME, None, "images/s", target=TARGET, how=reason)]
    count = QUICK_IMAGES if quick else IMAGES
    draw = random.Random(0)  # noqa: S311 - content of images, no secret
    images = {str(number): draw.randbytes(IMAGE_BYTES) for number in range(count)}
    with mqtt_broker(folder / "broker") as broker:
        file = folder / "ingestion.toml"
        file.write_text(PIPELINE.format(port=broker.port, python=sys.executable), encoding="utf-8")
        environment = {**os.environ, "LEADLINE_DATA_DIR": str(folder / "data")}
        words = [sys.executable, "-m", "leadline", "pipeline", "run", str(file)]
        runner = subprocess.Popen(words, env=environment)  # noqa: S603 - this program
        try:
            elapsed_s = _ingest(folder / "season", broker, images)
        finally:
            runner.terminate()
            runner.wait()
        stored = len(list((folder / "season" / EVENTS_FOLDER / "images").glob("[!.]*"))) - 1  # without the first
    how = (
        f"{count} images of {IMAGE_BYTES // 1000} kB, published with QoS 1 to a mosquitto on this machine, each synced "
        f"to disk and committed before its acknowledgement, while runs of a stage took 250 at a time; {stored} files"
    )
    return [
        at_least(NAME, count / elapsed_s, TARGET, "images/s", n=count, how=how),
        at_least("share of the published images that are stored once", stored / count, 1.0, "", n=count, how=how),
    ]


def _ingest(season: Path, broker: Broker, images: dict[str, bytes]) -> float:
    """Return the seconds from the first publication until the journal has all images."""
    _wait_for((season / JOURNAL).exists)
    with PipelineJournal(season) as journal:
        # The pipeline listens once a first message has arrived.
        while not journal.source_counts():
            broker.publish({"first": b""}, "traps/0/images")
            time.sleep(0.2)
        began_s = time.monotonic()
        broker.publish(images)
        _wait_for(lambda: journal.source_counts().get("images", 0) > len(images))
        return time.monotonic() - began_s


def _wait_for(is_done: Callable[[], bool]) -> None:
    """Wait for a condition.

    Raises:
        LeadlineError: it was not met in time.
    """
    deadline_s = time.monotonic() + MOST_S
    while not is_done():
        if time.monotonic() > deadline_s:
            raise LeadlineError(f"the images were not in the journal after {MOST_S:.0f} s")
        time.sleep(0.02)

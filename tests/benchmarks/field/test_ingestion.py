"""The throughput of ingestion is measured on a real broker, with every image stored once."""

import pytest

from benchmarks.field.ingestion import ingestion_rows
from tests.support.mqtt_broker import why_no_mosquitto


@pytest.mark.slow
def test_every_published_image_is_stored_once(tmp_path):
    pytest.importorskip("paho.mqtt")
    if reason := why_no_mosquitto():
        pytest.skip(reason)
    rate, share = ingestion_rows(tmp_path, quick=True)
    assert (share.value, share.n) == (1.0, 1000)
    assert rate.value > 0
    assert rate.target == 200.0

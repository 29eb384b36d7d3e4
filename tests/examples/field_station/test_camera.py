import shutil
import socket
import subprocess
import sys
import time

import camera
import pytest
import scenes
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

pytestmark = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto")


@pytest.fixture
def broker():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(["mosquitto", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(10)


def test_images_reach_a_subscriber_with_their_ids(broker, monkeypatch, capsys):
    messages = []
    subscriber = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    subscriber.on_message = lambda _client, _user, message: messages.append(message)
    subscribed = []
    subscriber.on_subscribe = lambda *_: subscribed.append(True)
    subscriber.connect("127.0.0.1", broker)
    subscriber.subscribe("traps/+/images", qos=1)
    subscriber.loop_start()
    _until(lambda: subscribed)
    words = "camera --seed 5 --count 20 --rate 0 --duplicates 10 --corrupt 7"
    monkeypatch.setattr(sys, "argv", [*words.split(), "--broker", f"127.0.0.1:{broker}"])
    camera.main()
    _until(lambda: len(messages) == 22)
    subscriber.disconnect()
    subscriber.loop_stop()
    properties = [dict(message.properties.UserProperty) for message in messages]
    assert len({each["id"] for each in properties}) == 20
    assert all(
        message.topic == f"traps/trap{each['trap']}/images" for message, each in zip(messages, properties, strict=True)
    )
    corrupt = 0
    for message, each in zip(messages, properties, strict=True):
        try:
            assert scenes.read_jpeg(message.payload)[0] == each["id"]
        except OSError:
            corrupt += 1
    assert corrupt == 2
    assert "published 22 messages" in capsys.readouterr().out


def _until(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("nothing came within 10 s")

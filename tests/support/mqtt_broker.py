"""A private mosquitto on loopback for the length of a test, which can be killed and started again."""

import getpass
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from leadline.core.errors import LeadlineError
from tests.support.slurm_cluster import DIE_WITH_PARENT, PATH

START_S = 20.0
ACCEPT_S = 60.0
"""Longest wait until the broker has taken all messages."""

# By default, mosquitto drops the messages of a client that is away beyond 1000.
CONFIGURATION = """\
listener {port} 127.0.0.1
persistence true
persistence_location {folder}/
autosave_interval 1
max_queued_messages 0
user {user}
"""


class BrokerNotStarted(LeadlineError):
    """Mosquitto did not start; the message contains its output."""


def why_no_mosquitto() -> str:
    """Return why no broker can be started here; empty if one can."""
    return "" if shutil.which("mosquitto", path=PATH) else "mosquitto is not installed here"


@dataclass
class Broker:
    """A running mosquitto, with its files in ``folder``."""

    folder: Path
    port: int
    access: str = "allow_anonymous true\n"
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = self.folder / "mosquitto.conf"
        settings.write_text(
            CONFIGURATION.format(port=self.port, folder=self.folder, user=getpass.getuser()) + self.access
        )
        program = str(shutil.which("mosquitto", path=PATH))
        with (self.folder / "mosquitto.log").open("ab") as log:
            self.process = subprocess.Popen([*DIE_WITH_PARENT, program, "-c", str(settings)], stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return
            time.sleep(0.05)
        self.stop()
        raise BrokerNotStarted(f"mosquitto did not start: {(self.folder / 'mosquitto.log').read_text()}")

    def stop(self, *, kill: bool = False) -> None:
        """End it in order, after which it has stored its sessions, or kill it."""
        if self.process is not None:
            if kill:
                self.process.kill()
            else:
                self.process.terminate()
            self.process.wait()
            self.process = None

    def save(self) -> None:
        """Wait until it has written its messages down, which a killed broker keeps."""
        assert self.process is not None, "the broker does not run"
        saved = self.folder / "mosquitto.db"
        before_ns = saved.stat().st_mtime_ns if saved.exists() else 0
        self.process.send_signal(signal.SIGUSR1)
        deadline_s = time.monotonic() + START_S
        while not saved.exists() or saved.stat().st_mtime_ns == before_ns:
            assert time.monotonic() < deadline_s, "the broker does not save"
            time.sleep(0.05)

    def publish(
        self, messages: Mapping[str, bytes], topic: str = "traps/1/images", *, ids: bool = True, qos: int = 1
    ) -> None:
        """Publish messages with their ids, and wait until the broker has accepted all."""
        from paho.mqtt import client as mqtt
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        connected = Event()
        camera = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        camera.max_inflight_messages_set(100)
        camera.on_connect = lambda *_: connected.set()
        camera.connect("127.0.0.1", self.port)
        camera.loop_start()
        assert connected.wait(START_S), "the broker accepts no connection"
        sent = []
        for key, content in messages.items():
            properties = Properties(PacketTypes.PUBLISH)
            properties.ContentType = "image/jpeg"
            if ids:
                properties.UserProperty = ("id", key)
            sent.append(camera.publish(topic, content, qos=qos, properties=properties))
        for message in sent:
            message.wait_for_publish(ACCEPT_S)
        camera.disconnect()
        camera.loop_stop()


@contextmanager
def mqtt_broker(folder: Path, access: str = "allow_anonymous true\n") -> Iterator[Broker]:
    """Run a broker on a free port, with its files in ``folder``; ``access`` is the configuration of its clients.

    Raises:
        BrokerNotStarted: it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        broker = Broker(folder, free.getsockname()[1], access)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()

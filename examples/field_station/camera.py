"""The traps' cameras: publish a season's images to an MQTT broker.

`python camera.py --images 500 --rate 20` publishes to `traps/TRAP/images` on localhost, QoS 1. The image's id is in the
EXIF header and, with trap and time, in the message's user properties. The true label is in neither.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from scenes import Scene, Season, season_of, season_options
from station import Review, replace_file, write_reviews

MOST_S = 120.0
"""Wait at the end for the broker to acknowledge all messages."""


def messages(season: Season, first: int, count: int, *, duplicates: int, corrupt: int) -> Iterator[tuple[Scene, bytes]]:
    """Yield images with their files in order; every n-th is sent twice, every m-th broken off (0 for never)."""
    for number in range(first, min(first + count, season.images)):
        scene = season.scene(number)
        content = scene.jpeg()
        turn = number + 1
        yield scene, content[: len(content) // 3] if corrupt and turn % corrupt == 0 else content
        if duplicates and turn % duplicates == 0:
            yield scene, content


def publish(client: mqtt.Client, scene: Scene, content: bytes) -> None:
    """Publish an image, to be delivered at least once, also while the broker is away."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("id", scene.image_id), ("trap", str(scene.trap)), ("at", f"{scene.at:.6f}")]
    client.publish(f"traps/trap{scene.trap}/images", content, qos=1, properties=properties)


def write_archive(season: Season, images: int, folder: Path) -> None:
    """Write the labelled images of before the season, which the first model is trained on."""
    scenes = [season.scene(number) for number in range(-images, 0)]
    for scene in scenes:
        replace_file(folder / f"{scene.image_id}.jpg", scene.jpeg())
    write_reviews([Review(scene.image_id, scene.label, "archive") for scene in scenes], folder)


def main() -> None:
    """Publish a season, or write its archive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    season_options(parser)
    parser.add_argument("--broker", default="localhost:1883", metavar="HOST:PORT")
    parser.add_argument("--rate", type=float, default=20, help="images a second; 0 is as fast as the broker takes them")
    parser.add_argument("--first", type=int, default=0, help="number of the first image")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many images at most")
    parser.add_argument("--duplicates", type=int, default=0, metavar="N", help="send every N-th image twice")
    parser.add_argument("--corrupt", type=int, default=0, metavar="N", help="break every N-th image off")
    parser.add_argument("--archive", type=int, metavar="N", help="write N labelled images to labels/ instead")
    options = parser.parse_args()
    season = season_of(options)
    if options.archive:
        write_archive(season, options.archive, Path("labels"))
        return
    host, _, port = options.broker.partition(":")
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="field-station-cameras", protocol=mqtt.MQTTv5)
    delivered: list[int] = []
    client.on_publish = lambda *arguments: delivered.append(arguments[2])
    client.reconnect_delay_set(1, 5)
    client.connect(host, int(port or 1883))  # paho connects again by itself, and sends what was not acknowledged
    client.loop_start()
    began = time.monotonic()
    source = messages(season, options.first, options.count, duplicates=options.duplicates, corrupt=options.corrupt)
    sent = 0
    for scene, content in _paced(source, options.rate, began):
        publish(client, scene, content)
        sent += 1
    deadline = time.monotonic() + MOST_S
    while len(delivered) < sent and time.monotonic() < deadline:
        time.sleep(0.05)
    client.disconnect()
    client.loop_stop()
    print(f"published {len(delivered)} messages in {time.monotonic() - began:.1f} s")
    if len(delivered) < sent:
        sys.exit(f"{sent - len(delivered)} messages were not acknowledged in {MOST_S:.0f} s: send them again")


def _paced(source: Iterator[tuple[Scene, bytes]], rate: float, began: float) -> Iterator[tuple[Scene, bytes]]:
    for turn, message in zip(itertools.count(), source):
        if rate:
            time.sleep(max(began + turn / rate - time.monotonic(), 0))
        yield message


if __name__ == "__main__":
    main()

"""Where events come from: an MQTT broker, files that arrive, and a schedule.

A source hands over events with ``take`` and may forget them after ``stored``, when the journal has them on disk. Events
that were taken and not stored come again after a restart, with the same ids.
"""

import fcntl
import hashlib
import mimetypes
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from leadline.core.errors import MissingExtra
from leadline.core.pipelines import FileSource, MqttSource, Pipeline, ScheduleSource
from leadline.execution.clock import iso_utc, now_utc
from leadline.execution.plane.journal import hash_key
from leadline.pipelines.journal import PipelineEvent

EVENTS_FOLDER = "events"
"""Folder of the payloads of messages, within the pipeline's folder."""
IN_FLIGHT = 200
"""Messages that a broker sends ahead of their acknowledgement."""
USER_VARIABLE, PASSWORD_VARIABLE = "LEADLINE_MQTT_USER", "LEADLINE_MQTT_PASSWORD"
TLS_PORT = 8883
SESSION_S = 2**32 - 1
"""The broker keeps the messages for a runner that is away: MQTT's value for a session without an end."""
WRITERS = 16
"""Threads that write payloads: 5,400 files a second on a disk where one thread writes 350."""
RECONNECT_S = 5
KEY_DIGITS = 20
"""Hexadecimal digits of a message's id."""
RESCAN_S = 60.0
"""Pause between two looks at all files; on network file systems, nothing else reports a file of another node."""
PARTIAL = (".part", ".partial", ".tmp", ".crdownload", ".filepart")
"""Endings of files that are still written."""


class Source(Protocol):
    """What the runner takes events from."""

    def take(self, most: int) -> list[PipelineEvent]:
        """Return at most so many new events, without waiting."""

    def has_more(self) -> bool:
        """Return whether something has arrived that was not taken yet."""

    def stored(self) -> None:
        """Note that the events that were taken are on disk."""

    def close(self) -> None:
        """Stop; nothing is taken after this."""


def open_sources(
    pipeline: Pipeline, origin: str, since_s: float, known: Callable[[str, list[str]], Collection[str]], wake: Event,
    report: Callable[[str], None],
) -> dict[str, Source]:  # fmt: skip
    """Open the sources of a pipeline: event → source. ``wake`` is set when events arrive.

    Args:
        pipeline: the pipeline.
        origin: identity of its journal, of which the names of its sessions at brokers are made.
        since_s: when the journal began; earlier times of a schedule are no events.
        known: returns those ids of a source that are in the journal.
        wake: set when events arrive.
        report: called with what a user should know, such as a broker that does not answer.

    Raises:
        MissingExtra: a package is not installed.
    """
    folder = Path(pipeline.folder)
    opened: dict[str, Source] = {}
    for name, source in pipeline.events.items():
        if isinstance(source, MqttSource):
            opened[name] = MqttInbox(name, source, folder, f"leadline-{hash_key(origin, name)}", wake, report)
        elif isinstance(source, FileSource):
            opened[name] = FileInbox(name, source, folder, known, wake)
        elif isinstance(source, ScheduleSource):
            opened[name] = ScheduleInbox(name, source, since_s)
    return opened


class MqttInbox:
    """Messages of a topic, acknowledged to the broker once they are stored.

    The session outlives this process, so a broker with persistence keeps the messages of the meantime. An event's id is
    the user property ``id`` of its message, or follows from its topic and payload: a message that is sent twice is one
    event. The payload goes to a file before the event is handed over.
    """

    def __init__(
        self, name: str, source: MqttSource, folder: Path, client_id: str, wake: Event, report: Callable[[str], None]
    ) -> None:
        try:
            from paho.mqtt import client as mqtt  # noqa: PLC0415 - an extra
            from paho.mqtt.packettypes import PacketTypes  # noqa: PLC0415 - an extra
            from paho.mqtt.properties import Properties  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtra("an MQTT event", "pipeline") from error
        self.name, self.folder, self._source, self._wake, self._report = name, folder, source, wake, report
        self._messages: deque[tuple[int, Any]] = deque()  # with the number of the connection they came over
        self._taken: list[tuple[int, Any]] = []  # those whose events are not stored yet
        self._connection = 0
        self._silent = False
        self._writers = ThreadPoolExecutor(WRITERS, f"payloads of {name}")
        self._client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5, manual_ack=True
        )
        self._client.on_connect, self._client.on_message = self._connected, self._arrived
        self._client.on_disconnect, self._client.on_connect_fail = self._disconnected, self._unreachable
        self._client.reconnect_delay_set(1, RECONNECT_S)
        if user := os.environ.get(USER_VARIABLE):
            self._client.username_pw_set(user, os.environ.get(PASSWORD_VARIABLE))
        if source.port == TLS_PORT:
            self._client.tls_set()
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval, properties.ReceiveMaximum = SESSION_S, IN_FLIGHT
        (folder / EVENTS_FOLDER / name).mkdir(parents=True, exist_ok=True)
        self._client.connect_async(source.host, source.port, keepalive=30, clean_start=False, properties=properties)
        self._client.loop_start()

    def take(self, most: int) -> list[PipelineEvent]:
        """Return the next messages as events, their payloads on disk."""
        while self._messages and len(self._taken) < most:
            self._taken.append(self._messages.popleft())
        # The disk takes many syncs at once in the time of one.
        events = list(self._writers.map(self._event, [message for _, message in self._taken]))
        if events:
            _sync_folder(self.folder / EVENTS_FOLDER / self.name)
        return events

    def has_more(self) -> bool:
        """Return whether messages wait."""
        return bool(self._messages)

    def stored(self) -> None:
        """Acknowledge the messages that were taken; the broker sends those of a lost connection again."""
        for connection, message in self._taken:
            if connection == self._connection and message.qos:
                self._client.ack(message.mid, message.qos)
        self._taken.clear()

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""
        self._client.disconnect()
        self._client.loop_stop()
        self._writers.shutdown()

    def _event(self, message: Any) -> PipelineEvent:  # noqa: ANN401 - a message of paho
        properties = dict(getattr(message.properties, "UserProperty", []))
        own_id = properties.pop("id", None)
        what, content = ("payload", message.payload) if own_id is None else ("id", own_id.encode())
        key = hashlib.sha256(f"{message.topic}\n{what}\n".encode() + content).hexdigest()[:KEY_DIGITS]
        suffix = mimetypes.guess_extension(getattr(message.properties, "ContentType", "")) or ""
        file = Path(EVENTS_FOLDER, self.name, key + suffix)
        if not (self.folder / file).exists():
            _write_synced(self.folder / file, message.payload, message.mid)
        return PipelineEvent(self.name, key, now_utc(), str(file), {**properties, "topic": message.topic})

    def _connected(self, *arguments: Any) -> None:  # noqa: ANN401 - client, data, flags, reason and properties
        if (reason := arguments[3]).is_failure:
            self._tell(f"the broker refuses the connection ({reason})")
            return
        if self._silent:
            self._report(f"{self._source}: the broker answers again")
        self._silent = False
        # Packets of an earlier connection are sent again: their numbers mean nothing here.
        self._connection += 1
        self._client.subscribe(self._source.topic, qos=1)

    def _arrived(self, _client: object, _userdata: object, message: Any) -> None:  # noqa: ANN401
        self._messages.append((self._connection, message))
        self._wake.set()

    def _disconnected(self, *arguments: Any) -> None:  # noqa: ANN401 - client, data, flags, reason and properties
        if (reason := arguments[3]).is_failure:
            self._tell(f"the connection to the broker was lost ({reason})")

    def _unreachable(self, _client: object, _userdata: object) -> None:
        self._tell("the broker does not answer")

    def _tell(self, what: str) -> None:
        """Report an outage once."""
        if not self._silent:
            self._report(
                f"{self._source}: {what}; trying again every {RECONNECT_S} s, and the broker keeps the messages"
            )
        self._silent = True


@dataclass
class FileInbox:
    """Files that match a pattern, each once it is complete; a file that changes later is another event.

    A file is complete when its size and time have not changed for a while and no process has it open for writing, where
    the system can tell. Files and folders whose names begin with a dot are left alone, as are partial downloads.
    """

    name: str
    source: FileSource
    folder: Path
    known: Callable[[str, list[str]], Collection[str]]
    wake: Event
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)  # file → its id, and since when it has that
    _scan_at_s: float = 0.0
    _changed: deque[str] = field(default_factory=deque)
    _stop: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        """Start to watch the folder."""
        try:
            import watchfiles  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise MissingExtra("an event of files", "pipeline") from error
        # The longest part of the pattern without a wildcard is the folder to watch.
        parts = Path(self.source.pattern).parent.parts
        fixed = next((at for at, part in enumerate(parts) if set("*?[") & set(part)), len(parts))
        root = self.folder.joinpath(*parts[:fixed])
        root.mkdir(parents=True, exist_ok=True)

        def watch() -> None:
            for changes in watchfiles.watch(
                root, stop_event=self._stop, watch_filter=None, debounce=100, rust_timeout=500
            ):
                self._changed.extend(path for _, path in changes)
                self.wake.set()

        self._thread = Thread(target=watch, name=f"files of {self.name}", daemon=True)
        self._thread.start()

    def take(self, most: int) -> list[PipelineEvent]:
        """Return the files that have become complete."""
        self._look()
        now_s = time.monotonic()
        settled = [file for file, (_, since_s) in self._seen.items() if now_s - since_s >= self.source.settle_s]
        events: list[PipelineEvent] = []
        for file in settled:
            if len(events) == most:
                break
            key = _file_id(self.folder, file)
            if key != self._seen[file][0]:
                self._note(file, key)
            elif not _is_written(self.folder / file):
                del self._seen[file]
                events.append(PipelineEvent(self.name, key or "", now_utc(), file))
        return events

    def has_more(self) -> bool:
        """Return whether files have changed or are not complete yet."""
        return bool(self._seen or self._changed)

    def stored(self) -> None:
        """Do nothing: the files stay where they are, and the journal knows their ids."""

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join(5)

    def _look(self) -> None:
        """Note the files that have changed, and now and then all of them."""
        changed = set()
        while self._changed:
            changed.add(self._changed.popleft())
        # In Python 3.11, ``match`` knows no ``**``.
        if time.monotonic() >= self._scan_at_s or (changed and "**" in self.source.pattern):
            self._scan_at_s = time.monotonic() + RESCAN_S
            paths = set(self.folder.glob(self.source.pattern))
        else:
            paths = {path for path in map(Path, changed) if path.is_relative_to(self.folder)}
            depth = len(Path(self.source.pattern).parts)  # ``match`` compares from the end
            paths = {
                path for path in paths
                if (name := path.relative_to(self.folder)).match(self.source.pattern) and len(name.parts) == depth
            }  # fmt: skip
        names = [str(path.relative_to(self.folder)) for path in sorted(paths)]
        ids = {file: key for file in names if (key := _file_id(self.folder, file)) is not None}
        known = self.known(self.name, list(ids.values())) if ids else ()
        for file, key in ids.items():
            if key not in known and self._seen.get(file, ("",))[0] != key:
                self._note(file, key)

    def _note(self, file: str, key: str | None) -> None:
        """Start to wait for a file to be complete; forget one that is gone."""
        if key is None:
            self._seen.pop(file, None)
        else:
            self._seen[file] = (key, time.monotonic())


@dataclass
class ScheduleInbox:
    """The times of a schedule; of those that were missed, only the last one is an event."""

    name: str
    source: ScheduleSource
    since_s: float  # earlier times are no events

    def take(self, most: int) -> list[PipelineEvent]:
        """Return the last time of the schedule, if it has passed since the last look."""
        from croniter import croniter  # noqa: PLC0415 - an extra, which was looked for when the file was read

        now = datetime.now().astimezone()
        last: datetime = croniter(self.source.cron, now).get_prev(datetime)
        if last.timestamp() <= self.since_s or not most:
            return []
        self.since_s = last.timestamp()
        return [PipelineEvent(self.name, iso_utc(self.since_s), now_utc())]

    def has_more(self) -> bool:
        """Return False: a time is an event at once."""
        return False

    def stored(self) -> None:
        """Do nothing: the time is the id."""

    def close(self) -> None:
        """Do nothing."""


def _file_id(folder: Path, file: str) -> str | None:
    """Return what identifies the content of a file: name, size and time; None for one to leave alone."""
    if "/." in f"/{file}" or file.endswith(PARTIAL):
        return None
    try:
        status = (folder / file).stat()
    except OSError:
        return None
    return f"{file} {status.st_size} {status.st_mtime_ns}" if (folder / file).is_file() else None


def _is_written(path: Path) -> bool:
    """Return whether a process has a file open for writing; False where the system does not tell."""
    try:
        with path.open("rb") as stream, suppress(PermissionError):
            # A writer that comes meanwhile makes the kernel signal this process, by default with one that ends it.
            fcntl.fcntl(stream, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(stream, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(stream, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return not path.exists()
    return False


def _write_synced(path: Path, content: bytes, number: int) -> None:
    """Write a file that is complete if it exists; ``number`` tells it from others that are written at once."""
    partial = path.with_name(f".{path.name}.{number}")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fdatasync(stream.fileno())
    partial.replace(path)


def _sync_folder(folder: Path) -> None:
    """Put the names of the files in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

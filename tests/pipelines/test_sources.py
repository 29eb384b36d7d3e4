"""Sources of events: a real broker, files that arrive in parts, and a schedule."""

import os
import shutil
import subprocess
import time
from threading import Event

import pytest

from leadline.core.pipelines import FileSource, MqttSource, ScheduleSource
from leadline.pipelines.journal import PipelineJournal
from leadline.pipelines.sources import FileInbox, MqttInbox, ScheduleInbox
from tests.support.mqtt_broker import mqtt_broker, why_no_mosquitto

ARRIVE_S = 30.0


@pytest.fixture
def journal(tmp_path):
    with PipelineJournal(tmp_path / "season") as opened:
        yield opened


def gather(inbox, journal, count, *, most=100):
    """Take and store events until there are so many new ones; return these."""
    events, deadline_s = {}, time.monotonic() + ARRIVE_S
    while len(events) < count and time.monotonic() < deadline_s:
        taken = inbox.take(most)
        known = journal.known(inbox.name, [event.id for event in taken])
        journal.add_events(taken)
        inbox.stored()
        events |= {event.id: event for event in taken if event.id not in known}
        time.sleep(0.02)
    return [*events.values()]


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def incoming(journal, tmp_path):
    pytest.importorskip("watchfiles")
    folder = tmp_path / "season" / "incoming"
    folder.mkdir()
    return folder


@pytest.fixture
def files(journal, incoming):
    inbox = FileInbox("uploads", FileSource("incoming/*.jpg", 0.2), incoming.parent, journal.known, Event())
    yield inbox
    inbox.close()


def test_files_that_were_there_and_files_that_arrive_are_events_once(files, journal, incoming):
    (incoming / "a.jpg").write_bytes(b"a")
    assert [event.file for event in gather(files, journal, 1)] == ["incoming/a.jpg"]
    (incoming / "b.jpg").write_bytes(b"b")
    (incoming / "notes.txt").write_bytes(b"c")
    assert [event.file for event in gather(files, journal, 1)] == ["incoming/b.jpg"]
    files._scan_at_s = 0.0
    time.sleep(0.3)
    assert files.take(9) == files.take(9) == []


def test_a_file_that_is_open_for_writing_is_no_event_until_it_is_closed(files, journal, incoming):
    with (incoming / "slow.jpg").open("wb") as stream:
        for _ in range(6):
            stream.write(b"part")
            stream.flush()
            time.sleep(0.15)
            assert files.take(9) == []
        time.sleep(0.6)  # longer than the pause after which a file counts as settled
        assert files.take(9) == []
    (event,) = gather(files, journal, 1)
    assert event.id.split()[1] == "24"


def test_a_file_that_grows_in_parts_is_one_event_with_its_last_size(files, journal, incoming):
    for size in range(1, 6):
        (incoming / "parts.jpg").write_bytes(b"x" * size)
        assert files.take(9) == []
        time.sleep(0.1)
    (event,) = gather(files, journal, 1)
    assert event.id.split()[1] == "5"


def test_partial_downloads_and_renames(files, journal, incoming):
    (incoming / ".hidden.jpg").write_bytes(b"x")
    (incoming / "b.jpg.part").write_bytes(b"x")
    time.sleep(0.5)
    assert files.take(9) == []
    (incoming / "b.jpg.part").rename(incoming / "b.jpg")
    assert [event.file for event in gather(files, journal, 1)] == ["incoming/b.jpg"]


@pytest.mark.parametrize(
    ("pattern", "folder"), [("*.jpg", ".copies/label-1"), ("**/*.jpg", ".copies/label-1"), ("*.jpg", "incoming")]
)
def test_files_in_hidden_folders_and_below_a_pattern_are_left_alone(journal, incoming, pattern, folder):
    other = incoming.parent / folder
    other.mkdir(parents=True, exist_ok=True)
    (other / "old.jpg").write_bytes(b"x")
    inbox = FileInbox("uploads", FileSource(pattern, 0.2), incoming.parent, journal.known, Event())
    try:
        assert inbox.take(10) == []
        (other / "a.jpg").write_bytes(b"x")
        time.sleep(0.5)
        (incoming.parent / "b.jpg").write_bytes(b"x")
        assert [event.file for event in gather(inbox, journal, 1)] == ["b.jpg"]
    finally:
        inbox.close()


def test_a_changed_file_is_another_event_and_a_removed_one_none(files, journal, incoming):
    (incoming / "a.jpg").write_bytes(b"a")
    gather(files, journal, 1)
    (incoming / "a.jpg").write_bytes(b"another")
    os.utime(incoming / "a.jpg", (1, 1))
    assert len(gather(files, journal, 1)) == 1
    (incoming / "gone.jpg").write_bytes(b"a")
    files.take(9)
    (incoming / "gone.jpg").unlink()
    time.sleep(0.5)
    assert files.take(9) == []


def test_what_was_taken_and_not_stored_comes_again(journal, incoming):
    for number in range(5):
        (incoming / f"{number}.jpg").write_bytes(b"a")
    ids = []
    for _ in range(2):
        inbox = FileInbox("uploads", FileSource("incoming/*.jpg", 0.1), incoming.parent, journal.known, Event())
        inbox.take(9)
        time.sleep(0.2)
        ids.append([event.id for event in inbox.take(3)])
        inbox.close()
    assert len(ids[0]) == 3
    assert ids[0] == ids[1]


# Schedule -------------------------------------------------------------------------------------------------------------


def test_of_missed_times_only_the_last_is_an_event(journal):
    pytest.importorskip("croniter")
    inbox = ScheduleInbox("often", ScheduleSource("* * * * *"), time.time() - 3600)
    assert inbox.take(0) == []
    (event,) = inbox.take(5)
    again = ScheduleInbox("often", ScheduleSource("* * * * *"), time.time() - 3600).take(5)
    assert [each.id for each in again] in ([event.id], [each.id for each in inbox.take(5)])
    assert ScheduleInbox("often", ScheduleSource("0 0 1 1 *"), time.time() - 1).take(5) == []


# MQTT -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path):
    pytest.importorskip("paho.mqtt")
    if reason := why_no_mosquitto():
        pytest.skip(reason)
    with mqtt_broker(tmp_path / "broker") as running:
        yield running


@pytest.fixture
def connect(broker, journal, tmp_path):
    opened, reports = [], []

    def open_inbox():
        source = MqttSource("127.0.0.1", broker.port, "traps/+/images")
        opened.append(MqttInbox("images", source, tmp_path / "season", "leadline-test", Event(), reports.append))
        deadline_s = time.monotonic() + ARRIVE_S
        while not opened[-1]._client.is_connected() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        time.sleep(0.2)  # the subscription
        return opened[-1]

    open_inbox.reports = reports
    yield open_inbox
    for inbox in opened:
        inbox.close()


def test_a_message_is_an_event_with_its_payload_in_a_file(broker, connect, journal, tmp_path):
    inbox = connect()
    broker.publish({"7": b"\xff\xd8image"})
    (event,) = gather(inbox, journal, 1)
    assert (tmp_path / "season" / event.file).read_bytes() == b"\xff\xd8image"
    assert event.file.endswith(".jpg")
    assert event.payload == {"topic": "traps/1/images"}


def test_messages_sent_twice_are_stored_once_by_id_or_by_content(broker, connect, journal, tmp_path):
    inbox = connect()
    broker.publish({str(number): b"same" for number in range(20)})
    broker.publish({str(number): b"same" for number in range(25)})
    assert len(gather(inbox, journal, 25)) == 25
    for _ in range(2):
        broker.publish({str(number): f"{number}".encode() for number in range(10)}, ids=False)
    assert len(gather(inbox, journal, 10)) == 10
    assert journal.source_counts() == {"images": 35}
    assert len(list((tmp_path / "season" / "events" / "images").iterdir())) == 35


def test_messages_of_every_quality_of_service_are_taken_and_the_connection_stays(broker, connect, journal):
    inbox = connect()
    for qos in (0, 1, 2, 1):
        broker.publish({f"{qos}-{number}": b"x" for number in range(5)}, qos=qos)
    assert len(gather(inbox, journal, 15)) == 15
    time.sleep(0.5)
    assert (inbox._connection, connect.reports) == (1, [])


def test_a_user_and_a_password_log_in(tmp_path, journal, monkeypatch):
    pytest.importorskip("paho.mqtt")
    if shutil.which("mosquitto_passwd") is None or why_no_mosquitto():
        pytest.skip("mosquitto_passwd is not installed here")
    passwords, reports = tmp_path / "passwords", []
    subprocess.run(["mosquitto_passwd", "-c", "-b", str(passwords), "ada", "secret"], check=True, capture_output=True)
    with mqtt_broker(tmp_path / "broker", f"allow_anonymous false\npassword_file {passwords}\n") as broker:
        source = MqttSource("127.0.0.1", broker.port, "t")
        MqttInbox("images", source, tmp_path / "season", "x", Event(), reports.append).close()
        monkeypatch.setenv("LEADLINE_MQTT_USER", "ada")
        monkeypatch.setenv("LEADLINE_MQTT_PASSWORD", "secret")
        inbox = MqttInbox("images", source, tmp_path / "season", "x", Event(), reports.append)
        deadline_s = time.monotonic() + ARRIVE_S
        while not inbox._connection and time.monotonic() < deadline_s:
            time.sleep(0.02)
        inbox.close()
    assert inbox._connection == 1


def test_what_was_not_stored_comes_again_and_what_was_stored_does_not(broker, connect, journal):
    first = connect()
    broker.publish({str(number): b"x" for number in range(40)})
    stored = gather(first, journal, 25, most=5)
    assert len(stored) == 25
    first.take(10)  # and never stored: a killed runner
    first.close()
    broker.publish({str(number): b"x" for number in range(40, 50)})  # while nobody listens
    rest = gather(connect(), journal, 25)
    assert len(rest) == 25
    assert len({event.id for event in [*stored, *rest]}) == 50


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_restarts_loses_nothing(broker, connect, journal, kill):
    inbox = connect()
    broker.publish({str(number): b"x" for number in range(60)})
    stored = gather(inbox, journal, 20, most=20)
    broker.save()
    broker.stop(kill=kill)
    broker.start()
    broker.publish({str(number): b"x" for number in range(60, 80)})
    stored += gather(inbox, journal, 60)
    assert journal.source_counts() == {"images": 80}
    assert len({event.id for event in stored}) == 80
    assert any("was lost" in report for report in connect.reports)
    assert connect.reports[-1].endswith("the broker answers again")


def test_a_broker_that_is_away_at_the_start_is_reported_once(journal, tmp_path):
    pytest.importorskip("paho.mqtt")
    reports = []
    inbox = MqttInbox("images", MqttSource("127.0.0.1", 1, "t"), tmp_path / "season", "x", Event(), reports.append)
    time.sleep(2.5)
    inbox.close()
    (report,) = reports
    assert report.startswith("MQTT t at 127.0.0.1:1: the broker does not answer; trying again every 5 s")

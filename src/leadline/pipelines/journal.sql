CREATE TABLE fact (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
CREATE TABLE event (
    number INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    id TEXT NOT NULL,
    at TEXT NOT NULL,
    file TEXT,
    payload TEXT NOT NULL,
    UNIQUE (source, id)
) STRICT;
CREATE INDEX event_of_source ON event (source, number);
CREATE TABLE batch (
    stage TEXT NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    upto INTEGER NOT NULL,
    events INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (stage, number)
) STRICT;
CREATE INDEX open_batch ON batch (state) WHERE state = 'RUNNING';
CREATE TABLE metric (
    stage TEXT NOT NULL,
    name TEXT NOT NULL,
    batch INTEGER NOT NULL,
    value REAL NOT NULL,
    UNIQUE (stage, name, batch)
) STRICT;

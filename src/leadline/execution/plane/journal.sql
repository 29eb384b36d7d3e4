CREATE TABLE job (
    key TEXT PRIMARY KEY,
    position INTEGER NOT NULL UNIQUE,
    state TEXT NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0,
    recorded INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    plan TEXT,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX job_recorded ON job (recorded);
CREATE TABLE attempt (
    key TEXT PRIMARY KEY,
    job TEXT NOT NULL REFERENCES job (key),
    number INTEGER NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX attempt_job ON attempt (job);
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    job TEXT NOT NULL,
    attempt TEXT NOT NULL,
    said TEXT NOT NULL
) STRICT;
CREATE INDEX event_job ON event (job);

CREATE TABLE job (
    key TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    spec TEXT NOT NULL,
    note TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    host TEXT,
    pid INTEGER,
    pid_started REAL,
    place TEXT,
    started_at TEXT,
    outcome TEXT
) STRICT;
CREATE TABLE wish (name TEXT PRIMARY KEY, at TEXT NOT NULL) STRICT;
CREATE TABLE submission (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    document TEXT NOT NULL,
    environment TEXT NOT NULL,
    made_at REAL NOT NULL,
    held INTEGER NOT NULL
) STRICT;
CREATE TABLE element (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    submission INTEGER NOT NULL
) STRICT;
CREATE INDEX element_of ON element (submission);
CREATE INDEX job_in ON job (state, position);

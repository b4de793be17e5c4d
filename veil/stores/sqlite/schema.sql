-- Version 1 of Veil's data in SQLite. The version stands in PRAGMA user_version; migrations follow as 002_….sql.

-- What belongs to the data as a whole: the receipt key, which store this is, which journal its outbox belongs to.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- The engine clock's high-water mark, written with every commit; the highest order key given out; the highest number given
-- out in the outbox and how large it is, which are kept here because this row is written anyway.
CREATE TABLE clock_mark (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    engine_ms    INTEGER NOT NULL,
    wall_ms      INTEGER NOT NULL,
    boot_ms      INTEGER NOT NULL,
    boot_id      TEXT    NOT NULL,
    last_seq     INTEGER NOT NULL,
    outbox_last  INTEGER NOT NULL,
    outbox_bytes INTEGER NOT NULL
) STRICT;

-- AUTOINCREMENT: an id names one queue for ever, since receipts carry it.
CREATE TABLE queue (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    region           TEXT    NOT NULL,
    account          TEXT    NOT NULL,
    name             TEXT    NOT NULL,
    settings         TEXT    NOT NULL, -- JSON, see stores/sql.py
    tags             TEXT    NOT NULL, -- JSON
    scope            TEXT    NOT NULL, -- the deduplication scope at creation: later changes have no effect, as on SQS
    created_wall_ms  INTEGER NOT NULL,
    modified_wall_ms INTEGER NOT NULL,
    purged_at_ms     INTEGER,
    deleted_at_ms    INTEGER,          -- set: its messages are being swept, nobody can see it
    deleted_by       BLOB              -- msgpack, see stores/sql.py: for the journal, which tells of each message when it is swept
) STRICT;

CREATE UNIQUE INDEX queue_by_key ON queue (region, account, name) WHERE deleted_at_ms IS NULL;

-- How many messages are where, kept up with every commit so that a start need not count the backlog.
CREATE TABLE queue_count (
    queue_id  INTEGER PRIMARY KEY,
    visible   INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    delayed   INTEGER NOT NULL
) STRICT;

-- Names that were freed lately and may not be taken again yet.
CREATE TABLE queue_rest (
    region        TEXT    NOT NULL,
    account       TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    deleted_at_ms INTEGER NOT NULL,
    PRIMARY KEY (region, account, name)
) STRICT, WITHOUT ROWID;

-- One row a message. What changes stands in front; the body, which never does, at the end.
CREATE TABLE message (
    seq                    INTEGER PRIMARY KEY, -- core/sequence.py: place, identity and age in one
    queue_id               INTEGER NOT NULL,
    state                  INTEGER NOT NULL,    -- core.lease.State
    wake_at_ms             INTEGER,             -- the earlier of due_at_ms and the end of retention; hidden messages only
    due_at_ms              INTEGER,             -- when the lease or the delay ends
    received_at_ms         INTEGER,
    delivery               INTEGER NOT NULL DEFAULT 0,
    holder                 INTEGER NOT NULL DEFAULT 0,
    receive_count          INTEGER NOT NULL DEFAULT 0,
    first_received_wall_ms INTEGER,
    sent_wall_ms           INTEGER NOT NULL,
    message_id             TEXT    NOT NULL,
    group_name             TEXT,
    deduplication_id       TEXT,
    dead_letter_source     TEXT,
    trace_header           TEXT,
    sender                 TEXT    NOT NULL,
    message_type           TEXT,                -- for the journal: before the body, so that a delete need not read that
    body_bytes             INTEGER NOT NULL,
    attributes             BLOB,                -- msgpack, see stores/sql.py
    body_md5               TEXT    NOT NULL,
    body                   TEXT    NOT NULL
) STRICT;

-- Each message stands in exactly one of the first three (the row's seq is the last column of every index): a receive
-- takes one out of `visible_…` and puts one into `hidden`.
CREATE INDEX visible_alone   ON message (queue_id) WHERE state = 0 AND group_name IS NULL;
CREATE INDEX visible_grouped ON message (queue_id) WHERE state = 0 AND group_name IS NOT NULL;
CREATE INDEX hidden          ON message (queue_id, wake_at_ms) WHERE state <> 0;
CREATE INDEX grouped         ON message (queue_id, group_name) WHERE group_name IS NOT NULL;

-- One row for each group that has messages: whose turn it is (FIFO), and how loud it is (fair queues).
CREATE TABLE lane (
    queue_id   INTEGER NOT NULL,
    group_name TEXT    NOT NULL,
    turn       INTEGER NOT NULL, -- the least recently served lane has the lowest
    is_open    INTEGER NOT NULL, -- FIFO: the first message of the group is visible
    members    INTEGER NOT NULL,
    in_flight  INTEGER NOT NULL,
    PRIMARY KEY (queue_id, group_name)
) STRICT, WITHOUT ROWID;

CREATE INDEX lane_open  ON lane (queue_id, turn) WHERE is_open = 1;
CREATE INDEX lane_noisy ON lane (queue_id, in_flight) WHERE in_flight >= 30;

-- What was sent to FIFO queues in the last five minutes.
CREATE TABLE deduplication (
    queue_id   INTEGER NOT NULL,
    scope      TEXT    NOT NULL, -- the group, or '' where the whole queue is the scope
    dedup_id   TEXT    NOT NULL,
    until_ms   INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    PRIMARY KEY (queue_id, scope, dedup_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX deduplication_until ON deduplication (until_ms);

-- Sends that may be repeated under their retry key: one row for all of a transaction.
CREATE TABLE repeatable_send (
    seq   INTEGER PRIMARY KEY, -- an order key, of which only the instant matters
    sends BLOB NOT NULL        -- msgpack: [[queue id, retry key, [[message id, seq, duplicate], …]], …]
) STRICT;

-- What happened to messages and is not yet exported: one row for all of a transaction. Rows are only ever added at the end
-- and removed from the front.
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY, -- from 1, without gaps and without reuse (clock_mark.outbox_last)
    at_ms  INTEGER NOT NULL,    -- engine time of the commit
    packed BLOB    NOT NULL     -- core/event.py
) STRICT;

-- How far the export has come: rows up to `done` are safe elsewhere and on their way out. A plan holds the rows after
-- `done` up to `last`.
CREATE TABLE export (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    done INTEGER NOT NULL,
    last INTEGER, -- NULL: there is no plan
    day  TEXT
) STRICT;

INSERT INTO export (id, done) VALUES (1, 0);

-- Receives that may be repeated under their attempt id.
CREATE TABLE attempt (
    queue_id   INTEGER NOT NULL,
    attempt_id TEXT    NOT NULL,
    until_ms   INTEGER NOT NULL,
    claims     TEXT    NOT NULL, -- JSON: [[seq, delivery, due_at_ms], …]
    PRIMARY KEY (queue_id, attempt_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_until ON attempt (until_ms);

CREATE TABLE move_task (
    number          INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of the starts
    id              TEXT    NOT NULL UNIQUE,
    source          TEXT    NOT NULL, -- ARNs
    destination     TEXT,
    rate_per_s      INTEGER,
    status          TEXT    NOT NULL,
    moved           INTEGER NOT NULL,
    to_move         INTEGER NOT NULL,
    started_wall_ms INTEGER NOT NULL,
    failure         TEXT,
    caller          BLOB              -- who started it: msgpack, see stores/sql.py
) STRICT;

CREATE INDEX move_task_source ON move_task (source, number);
CREATE INDEX move_task_active ON move_task (status) WHERE status IN ('RUNNING', 'CANCELLING');

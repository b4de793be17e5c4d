-- Version 2: holds (core/lease.py).

-- Who reads a queue under names: the owner, and the last batch that was acknowledged, whose names are closed.
CREATE TABLE stream (
    queue_id   INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    owner      TEXT,             -- NULL: nobody has opened it
    closed     INTEGER NOT NULL, -- -1: nothing
    used_at_ms INTEGER NOT NULL,
    PRIMARY KEY (queue_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX stream_used ON stream (used_at_ms);

-- What a named receive took, also when that is nothing. Its leases stand in the messages, as any others do.
CREATE TABLE hold (
    queue_id INTEGER NOT NULL,
    stream   TEXT    NOT NULL,
    batch    INTEGER NOT NULL,
    part     INTEGER NOT NULL,
    lost     INTEGER NOT NULL, -- how many members were struck
    members  BLOB    NOT NULL, -- msgpack: [[seq, delivery], …]
    PRIMARY KEY (queue_id, stream, batch, part)
) STRICT, WITHOUT ROWID;

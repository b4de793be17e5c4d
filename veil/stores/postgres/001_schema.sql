-- Version 1 of Veil's data in PostgreSQL: everything stands in the schema `veil`. Later versions follow as 002_….sql.
--
-- Every key of what belongs to a queue begins with the queue. There are no foreign keys: each would be a look-up with every
-- message.

-- What belongs to the data as a whole: the version, the receipt key, which store this is, which journal it writes.
CREATE TABLE veil.meta (
    name  text  PRIMARY KEY,
    value bytea NOT NULL
);

-- Raised whenever a queue is made, edited or deleted: a node whose memory of the queues has this number is up to date.
CREATE TABLE veil.epoch (
    id    int    PRIMARY KEY CHECK (id = 1),
    epoch bigint NOT NULL
) WITH (fillfactor = 10);

INSERT INTO veil.epoch (id, epoch) VALUES (1, 0);

-- The low bits of the order keys, and the turns of groups. Rises for ever.
CREATE SEQUENCE veil.counter;

-- An id names one queue for ever, since receipts carry it.
CREATE TABLE veil.queue (
    id               int    GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version          bigint NOT NULL, -- the epoch of the latest change
    region           text   NOT NULL,
    account          text   NOT NULL,
    name             text   NOT NULL,
    settings         text   NOT NULL, -- JSON, see stores/sql.py
    tags             text   NOT NULL, -- JSON
    scope            text   NOT NULL, -- the deduplication scope at creation: later changes have no effect, as on SQS
    has_lanes        bool   NOT NULL DEFAULT false, -- it has had messages with a group: one transaction at a time then
    created_wall_ms  bigint NOT NULL,
    modified_wall_ms bigint NOT NULL,
    purged_at_ms     bigint,
    deleted_at_ms    bigint,          -- set: its messages are being swept, nobody can see it
    deleted_by       bytea,           -- msgpack: for the journal, which tells of each message when it is swept
    swept            bool   NOT NULL DEFAULT false -- deleted, and nothing of it is left but this row
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX queue_by_key ON veil.queue (region, account, name) WHERE deleted_at_ms IS NULL;
CREATE INDEX queue_by_version ON veil.queue (version);

-- How many messages are where. Each connection of each node adds to a row of its own, so that nobody waits; the sum over
-- the slots is exact at every instant.
CREATE TABLE veil.queue_count (
    queue_id  int    NOT NULL,
    slot      int    NOT NULL,
    visible   bigint NOT NULL,
    in_flight bigint NOT NULL,
    delayed   bigint NOT NULL,
    last_seq  bigint NOT NULL, -- FIFO: the highest order key given out
    returns   bigint NOT NULL DEFAULT 0, -- how often messages became visible in another place than at the end: watermarks.py
    PRIMARY KEY (queue_id, slot)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_vacuum_cost_delay = 0);

-- Names that were freed lately and may not be taken again yet.
CREATE TABLE veil.queue_rest (
    region        text   NOT NULL,
    account       text   NOT NULL,
    name          text   NOT NULL,
    deleted_at_ms bigint NOT NULL,
    PRIMARY KEY (region, account, name)
);

-- One row a message.
CREATE TABLE veil.message (
    seq                    bigint   NOT NULL,           -- core/sequence.py: place, identity and age in one
    queue_id               int      NOT NULL,
    state                  smallint NOT NULL,           -- core.lease.State
    priority               smallint NOT NULL DEFAULT 8, -- core/message.py
    wake_at_ms             bigint,                      -- the earlier of due_at_ms and the end of retention; hidden messages only
    due_at_ms              bigint,                      -- when the lease or the delay ends
    received_at_ms         bigint,
    first_received_wall_ms bigint,
    sent_wall_ms           bigint   NOT NULL,
    delivery               int      NOT NULL DEFAULT 0,
    holder                 bigint   NOT NULL DEFAULT 0, -- the receipt of the open lease: delivery, and rotation above 32 bits
    receive_count          int      NOT NULL DEFAULT 0,
    body_bytes             int      NOT NULL,
    message_id             text     NOT NULL,
    group_name             text,
    deduplication_id       text,
    dead_letter_source     text,
    trace_header           text,
    sender                 text     NOT NULL,
    message_type           text,
    body_md5               text     NOT NULL,
    attributes             bytea,                       -- msgpack
    body                   text     NOT NULL,
    PRIMARY KEY (queue_id, seq)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 10000,
        toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0);

-- A long body stands apart and is not copied when its message is received; to compress it would cost more than it saves.
ALTER TABLE veil.message ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN attributes SET STORAGE EXTERNAL;

-- Each message stands in exactly one of the first two: a receive takes one out of `visible` and puts one into `hidden`.
CREATE INDEX message_visible ON veil.message (queue_id, priority, seq) WHERE state = 0;
CREATE INDEX message_hidden  ON veil.message (queue_id, wake_at_ms) WHERE state <> 0;
CREATE INDEX message_grouped ON veil.message (queue_id, group_name, seq) WHERE group_name IS NOT NULL;

-- One row for each group that has messages: whose turn it is (FIFO), and how loud it is (fair queues).
CREATE TABLE veil.lane (
    queue_id   int    NOT NULL,
    group_name text   NOT NULL,
    turn       bigint NOT NULL, -- the least recently served lane has the lowest
    is_open    bool   NOT NULL, -- FIFO: the first message of the group is visible
    members    bigint NOT NULL,
    in_flight  bigint NOT NULL,
    PRIMARY KEY (queue_id, group_name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX lane_open  ON veil.lane (queue_id, turn) WHERE is_open;
CREATE INDEX lane_noisy ON veil.lane (queue_id, in_flight) WHERE in_flight >= 30;

-- What was sent to FIFO queues in the last five minutes.
CREATE TABLE veil.deduplication (
    queue_id   int    NOT NULL,
    scope      text   NOT NULL, -- the group, or '' where the whole queue is the scope
    dedup_id   text   NOT NULL,
    until_ms   bigint NOT NULL,
    seq        bigint NOT NULL,
    message_id text   NOT NULL,
    PRIMARY KEY (queue_id, scope, dedup_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX deduplication_until ON veil.deduplication USING brin (until_ms) WITH (pages_per_range = 16, autosummarize = on);

-- Sends that may be repeated under their retry key, on whichever node.
CREATE TABLE veil.repeatable_send (
    queue_id  int    NOT NULL,
    retry_key bytea  NOT NULL,
    until_ms  bigint NOT NULL,
    sent      bytea  NOT NULL, -- msgpack: [[message id, seq, duplicate], …]
    PRIMARY KEY (queue_id, retry_key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Rows come in the order of their instants: a few pages of index are enough to find the old ones.
CREATE INDEX repeatable_send_until ON veil.repeatable_send USING brin (until_ms)
    WITH (pages_per_range = 16, autosummarize = on);

-- Receives that may be repeated under their attempt id.
CREATE TABLE veil.attempt (
    queue_id   int    NOT NULL,
    attempt_id text   NOT NULL,
    until_ms   bigint NOT NULL,
    claims     bytea  NOT NULL, -- msgpack: [[seq, delivery, due_at_ms], …]
    PRIMARY KEY (queue_id, attempt_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX attempt_until ON veil.attempt (until_ms);

-- Who reads a queue under names: the owner, and the last batch that was acknowledged, whose names are closed.
CREATE TABLE veil.stream (
    queue_id   int    NOT NULL,
    name       text   NOT NULL,
    owner      text,            -- NULL: nobody has opened it
    closed     bigint NOT NULL, -- -1: nothing
    used_at_ms bigint NOT NULL,
    PRIMARY KEY (queue_id, name)
) WITH (fillfactor = 70);

-- What a named receive took, also when that is nothing. Its leases stand in the messages, as any others do.
CREATE TABLE veil.hold (
    queue_id int    NOT NULL,
    stream   text   NOT NULL,
    batch    bigint NOT NULL,
    part     bigint NOT NULL,
    lost     bigint NOT NULL, -- how many members were struck
    members  bytea  NOT NULL, -- msgpack: [[seq, delivery], …]
    PRIMARY KEY (queue_id, stream, batch, part)
);

-- What happened to messages and is not yet exported: one row for all of a transaction. Transactions end in another order
-- than they begin in, so a row gets its number only when it is planned, and only once no older transaction is open.
CREATE TABLE veil.outbox (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid    xid8   NOT NULL DEFAULT pg_current_xact_id(),
    at_ms  bigint NOT NULL, -- engine time of the transaction
    number bigint,          -- from 1, without gaps and without reuse; NULL until it is planned
    packed bytea  NOT NULL  -- core/event.py
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE veil.outbox ALTER COLUMN packed SET STORAGE EXTERNAL;
CREATE INDEX outbox_waiting ON veil.outbox (xid, id) WHERE number IS NULL;
CREATE INDEX outbox_planned ON veil.outbox (number) WHERE number IS NOT NULL;

-- How large the outbox is, by slots as the counts of the queues are.
CREATE TABLE veil.outbox_count (
    slot         int    PRIMARY KEY,
    rows         bigint NOT NULL,
    packed_bytes bigint NOT NULL
) WITH (fillfactor = 40);

-- How far the export has come: rows up to `done` are safe elsewhere and on their way out. A plan holds the rows after
-- `done` up to `last`.
CREATE TABLE veil.export (
    id   int    PRIMARY KEY CHECK (id = 1),
    done bigint NOT NULL,
    last bigint, -- NULL: there is no plan
    day  text
);

INSERT INTO veil.export (id, done) VALUES (1, 0);

CREATE TABLE veil.move_task (
    number          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- the order of the starts
    id              text   NOT NULL UNIQUE,
    source          text   NOT NULL, -- ARNs
    destination     text,
    rate_per_s      int,
    status          text   NOT NULL,
    moved           bigint NOT NULL,
    to_move         bigint NOT NULL,
    started_wall_ms bigint NOT NULL,
    failure         text,
    caller          bytea            -- who started it: msgpack
);

CREATE INDEX move_task_source ON veil.move_task (source, number);
CREATE UNIQUE INDEX move_task_active ON veil.move_task (source) WHERE status IN ('RUNNING', 'CANCELLING');

-- The nodes that are alive, by their heartbeat. The number is small and used again: it names the slots of a node's counts.
CREATE TABLE veil.node (
    number  int    PRIMARY KEY,
    name    text   NOT NULL,
    seen_ms bigint NOT NULL -- the database's own time, whatever clock the queues run on
) WITH (fillfactor = 40);

-- What one node at a time does: a lease in the database, so that nothing depends on a session.
CREATE TABLE veil.duty (
    name     text   PRIMARY KEY,
    node     text   NOT NULL,
    until_ms bigint NOT NULL -- the database's own time
) WITH (fillfactor = 40);

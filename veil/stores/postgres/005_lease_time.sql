-- The time that counts for leases (core.clock): when a node last ran, and the latest trouble in which renewals could not be taken.
-- One row, read when something is due.
CREATE TABLE veil.lease_time (
    id         int    PRIMARY KEY CHECK (id = 1),
    beat_ms    bigint NOT NULL, -- the database's own time, as all of these
    from_ms    bigint,
    to_ms      bigint,
    kind       text,
    healthy_ms bigint
) WITH (fillfactor = 20);

INSERT INTO veil.lease_time (id, beat_ms) VALUES (1, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- Version 6: leases that are not in the rows of their messages yet (lease_log.py).

CREATE TABLE lease_log (
    number INTEGER PRIMARY KEY,
    packed BLOB NOT NULL -- msgpack: what a transaction did to them
) STRICT;

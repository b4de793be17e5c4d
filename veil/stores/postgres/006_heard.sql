-- Whom each node has heard lately, as it tells the others, so that one of them can say that a caller is silent everywhere.
-- Written every few seconds, and kept for a while when the node is gone.
CREATE TABLE veil.heard (
    name   text   PRIMARY KEY, -- of the node
    at_ms  bigint NOT NULL,    -- the database's own time
    packed bytea  NOT NULL     -- service/attempts.py
) WITH (fillfactor = 40);

-- Several PostgreSQL servers under one set of queues (stores/sharded.py): each queue lives on one of them.

-- On the first server alone: the servers, and where each queue lives.
CREATE TABLE veil.server (
    number   int  PRIMARY KEY, -- 0 is the first one; its queues and order keys are told apart by it
    store_id text NOT NULL UNIQUE
);

CREATE TABLE veil.placement (
    region  text   NOT NULL,
    account text   NOT NULL,
    name    text   NOT NULL,
    server  int    NOT NULL,
    PRIMARY KEY (region, account, name)
);

-- On each: messages that came from another server, noted with their arrival, so that none arrives twice.
CREATE TABLE veil.carried (
    queue_id int    NOT NULL,
    seq      bigint NOT NULL, -- on the server that it came from
    at_ms    bigint NOT NULL,
    PRIMARY KEY (queue_id, seq)
);

-- Counts in generations: once a queue's rows have been changed often they are folded into one row of the next generation, and
-- nobody reads the former ones again. While a long transaction keeps every former state of a row, a look at the counts would
-- otherwise go through all of them.
ALTER TABLE veil.queue_count
    ADD COLUMN generation int NOT NULL DEFAULT 0,
    ADD COLUMN changes    int NOT NULL DEFAULT 0; -- of the row, since the generation began
ALTER TABLE veil.queue_count DROP CONSTRAINT queue_count_pkey;
ALTER TABLE veil.queue_count ADD CONSTRAINT queue_count_pkey PRIMARY KEY (queue_id, generation, slot);

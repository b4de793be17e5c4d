-- How long all was well before the latest trouble. Of one that was noted without it nothing is known: it counts as the first.
ALTER TABLE veil.lease_time ADD COLUMN gap_ms bigint NOT NULL DEFAULT 60000;

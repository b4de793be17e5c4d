-- Version 3: priorities (core/priority.py). The receipts of leases can be rotated from this version on, for which `holder`
-- has room: see leases.py.

ALTER TABLE message ADD COLUMN priority INTEGER NOT NULL DEFAULT 8;

-- Whether a message of another priority than 8 was ever in the queue: only then has a receive to look for such.
ALTER TABLE queue ADD COLUMN ranked INTEGER NOT NULL DEFAULT 0;

-- Each message stands in `hidden` or in exactly one of the first three. Those of another priority stand apart, so that the
-- others are found as quickly as ever; they alone pay for a second index, by age.
DROP INDEX visible_alone;
DROP INDEX visible_grouped;
CREATE INDEX visible_alone   ON message (queue_id) WHERE state = 0 AND group_name IS NULL AND priority = 8;
CREATE INDEX visible_grouped ON message (queue_id) WHERE state = 0 AND group_name IS NOT NULL AND priority = 8;
CREATE INDEX visible_ranked  ON message (queue_id, priority) WHERE state = 0 AND priority <> 8;
CREATE INDEX ranked_by_age   ON message (queue_id) WHERE state = 0 AND priority <> 8;

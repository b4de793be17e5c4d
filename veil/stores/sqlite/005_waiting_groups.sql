-- Version 5: the groups of a standard queue that have something which is not in flight, by their oldest message. What is closed of a
-- FIFO queue stands here too, and is never looked for.

CREATE INDEX lane_waiting ON lane (queue_id, turn) WHERE is_open = 0 AND members > in_flight;

-- An older message may have joined a group later, as a dead letter does.
UPDATE lane SET turn = min(turn, coalesce((
    SELECT seq FROM message INDEXED BY grouped
     WHERE message.queue_id = lane.queue_id AND message.group_name = lane.group_name ORDER BY seq LIMIT 1), turn))
WHERE queue_id IN (SELECT id FROM queue WHERE NOT coalesce(settings ->> 'fifo', 0));

-- What `verify` asks, by name. Texts are read as blobs: a flipped bit can make them anything.

-- name: all_queues
SELECT id, CAST(name AS BLOB), CAST(settings AS BLOB), CAST(tags AS BLOB), deleted_at_ms IS NOT NULL FROM queue;

-- name: all_messages
SELECT seq, queue_id, state, wake_at_ms, due_at_ms, delivery, holder, attributes,
       CAST(body_md5 AS BLOB), CAST(body AS BLOB), CAST(message_id AS BLOB),
       CAST(coalesce(group_name, '') || coalesce(deduplication_id, '') || coalesce(trace_header, '')
            || coalesce(dead_letter_source, '') || sender || coalesce(message_type, '') AS BLOB),
       body_bytes
FROM message NOT INDEXED;

-- name: expected_messages
SELECT coalesce(sum(visible + in_flight + delayed), 0) FROM queue_count;

-- name: highest_seq
SELECT max(seq) FROM message;

-- name: wrong_counts
-- Living queues whose kept counts are not the real ones: id, the kept three, the real three.
SELECT q.id, c.visible, c.in_flight, c.delayed, coalesce(m.visible, 0), coalesce(m.in_flight, 0), coalesce(m.delayed, 0)
FROM queue q
LEFT JOIN queue_count c ON c.queue_id = q.id
LEFT JOIN (SELECT queue_id, sum(state = 0) AS visible, sum(state = 2) AS in_flight, sum(state = 1) AS delayed
             FROM message NOT INDEXED GROUP BY queue_id) m ON m.queue_id = q.id
WHERE q.deleted_at_ms IS NULL
  AND (c.visible, c.in_flight, c.delayed)
      IS NOT (coalesce(m.visible, 0), coalesce(m.in_flight, 0), coalesce(m.delayed, 0));

-- name: wrong_groups
-- Groups of living queues whose lane does not say what their messages say: queue, group, the kept three, the real three.
-- The argument is a JSON list of the FIFO queues. (With one min(), the bare `state` is that of the first message.)
WITH real AS (
    SELECT queue_id, group_name, count(*) AS members, sum(state = 2) AS in_flight,
           state = 0 AND queue_id IN (SELECT value FROM json_each(?1)) AS is_open, min(seq) AS head
    FROM message NOT INDEXED
    WHERE group_name IS NOT NULL AND queue_id IN (SELECT id FROM queue WHERE deleted_at_ms IS NULL)
    GROUP BY queue_id, group_name)
SELECT coalesce(lane.queue_id, real.queue_id), CAST(coalesce(lane.group_name, real.group_name) AS BLOB),
       lane.members, lane.in_flight, lane.is_open, real.members, real.in_flight, real.is_open
FROM lane FULL JOIN real ON lane.queue_id = real.queue_id AND lane.group_name = real.group_name
WHERE (lane.members, lane.in_flight, lane.is_open) IS NOT (real.members, real.in_flight, real.is_open);

-- name: odd_priorities
-- Messages of another priority than the ordinary one that a receive would not find: queue, key, priority, the queue's flag.
SELECT m.queue_id, m.seq, m.priority, q.ranked FROM message m NOT INDEXED JOIN queue q ON q.id = m.queue_id
WHERE m.priority <> 8 AND (q.ranked = 0 OR m.priority NOT BETWEEN 1 AND 16) AND q.deleted_at_ms IS NULL;

-- name: all_attempts
SELECT queue_id, CAST(attempt_id AS BLOB), CAST(claims AS BLOB) FROM attempt;

-- name: all_holds
-- With what they hang on: whether their queue lives, and whether their stream is known.
SELECT h.queue_id, CAST(h.stream AS BLOB), h.batch, h.part, h.lost, h.members,
       EXISTS (SELECT 1 FROM queue q WHERE q.id = h.queue_id AND q.deleted_at_ms IS NULL),
       EXISTS (SELECT 1 FROM stream s WHERE s.queue_id = h.queue_id AND s.name = h.stream)
FROM hold h;

-- name: all_streams
SELECT s.queue_id, CAST(s.name AS BLOB), CAST(coalesce(s.owner, '') AS BLOB), s.closed,
       EXISTS (SELECT 1 FROM queue q WHERE q.id = s.queue_id AND q.deleted_at_ms IS NULL)
FROM stream s;

-- name: all_moves
SELECT CAST(id AS BLOB), CAST(source AS BLOB), CAST(destination AS BLOB) FROM move_task;

-- name: all_outbox
SELECT number, packed FROM outbox ORDER BY number;

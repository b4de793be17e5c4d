-- What `verify` asks and what is counted again, by name. Texts are read as blobs: a flipped bit can make them anything.

-- part: LIVING
SELECT id FROM queue WHERE deleted_at_ms IS NULL

-- part: REAL_COUNTS
SELECT q.id AS queue_id, coalesce(m.visible, 0) AS visible, coalesce(m.in_flight, 0) AS in_flight,
       coalesce(m.delayed, 0) AS delayed
FROM queue q LEFT JOIN (
    SELECT queue_id, sum(state = {VISIBLE}) AS visible, sum(state = {IN_FLIGHT}) AS in_flight, sum(state = {DELAYED}) AS delayed
    FROM message NOT INDEXED GROUP BY queue_id) m ON m.queue_id = q.id

-- part: REAL_GROUPS
-- With one min(), the bare `state` is that of the first message.
SELECT queue_id, group_name, min(seq) AS turn, state = {VISIBLE} AND queue_id IN (
           SELECT id FROM queue WHERE CASE WHEN json_valid(settings) THEN settings ->> 'fifo' END) AS is_open,
       count(*) AS members, sum(state = {IN_FLIGHT}) AS in_flight
FROM message NOT INDEXED WHERE group_name IS NOT NULL AND queue_id IN ({LIVING})
GROUP BY queue_id, group_name

-- name: all_queues
SELECT CAST(name AS BLOB), deleted_at_ms IS NOT NULL FROM queue;

-- name: all_messages
SELECT seq, queue_id, state, wake_at_ms, due_at_ms, delivery, holder, attributes,
       CAST(body_md5 AS BLOB), CAST(body AS BLOB),
       CAST(message_id || coalesce(group_name, '') || coalesce(deduplication_id, '') || coalesce(trace_header, '')
            || coalesce(dead_letter_source, '') || sender || coalesce(message_type, '') AS BLOB),
       body_bytes
FROM message NOT INDEXED;

-- name: expected_messages
SELECT coalesce(sum(visible + in_flight + delayed), 0) FROM queue_count;

-- name: highest_seq
SELECT max(seq) FROM message;

-- name: all_outbox
SELECT number, packed FROM outbox ORDER BY number;

-- ---- what must be readable: where it stands, and what stands there

-- name: all_settings
SELECT CAST('queue ' || name || ' (' || id || ')' AS BLOB), CAST(settings AS BLOB) FROM queue WHERE deleted_at_ms IS NULL;

-- name: all_tags
SELECT CAST('queue ' || name || ' (' || id || ')' AS BLOB), CAST(tags AS BLOB) FROM queue WHERE deleted_at_ms IS NULL;

-- name: all_claims
SELECT CAST('queue ' || queue_id || ', attempt ' || attempt_id AS BLOB), CAST(claims AS BLOB) FROM attempt;

-- name: all_moved
SELECT CAST('move task ' || id AS BLOB), CAST(source AS BLOB) FROM move_task
UNION ALL SELECT CAST('move task ' || id AS BLOB), CAST(destination AS BLOB) FROM move_task WHERE destination IS NOT NULL;

-- name: all_streams
SELECT CAST('queue ' || queue_id || ', stream ' || name AS BLOB), CAST(name || coalesce(owner, '') AS BLOB) FROM stream;

-- name: all_members
SELECT CAST('queue ' || queue_id || ', hold ' || stream || '/' || batch || '/' || part AS BLOB), members FROM hold;

-- ---- what is wrong: where, and what of it

-- name: make_leased
-- Messages that are in flight by the log of leases.
CREATE TEMP TABLE leased (seq INTEGER PRIMARY KEY);

-- name: add_leased
INSERT INTO temp.leased VALUES (?);

-- name: wrong_counts
-- Of living queues.
SELECT 'queue ' || m.queue_id, 'counts say '
       || iif(c.queue_id IS NULL, 'nothing', format('%d visible, %d in flight, %d delayed', c.visible, c.in_flight, c.delayed))
       || '; there are ' || format('%d visible, %d in flight, %d delayed', m.visible, m.in_flight, m.delayed)
FROM (SELECT r.queue_id, r.visible - coalesce(l.leased, 0) AS visible, r.in_flight + coalesce(l.leased, 0) AS in_flight, r.delayed
      FROM ({REAL_COUNTS}) r LEFT JOIN (SELECT queue_id, count(*) AS leased FROM temp.leased JOIN message USING (seq) GROUP BY queue_id) l
           ON l.queue_id = r.queue_id) m
LEFT JOIN queue_count c ON c.queue_id = m.queue_id
WHERE m.queue_id IN ({LIVING})
  AND (c.visible, c.in_flight, c.delayed) IS NOT (m.visible, m.in_flight, m.delayed);

-- name: wrong_groups
-- Groups of living queues whose row does not say what their messages say.
SELECT CAST('queue ' || coalesce(l.queue_id, m.queue_id) || ', group ' || coalesce(l.group_name, m.group_name) AS BLOB),
       'its row says ' || iif(l.queue_id IS NULL, 'that it does not exist',
            format('%d messages, %d in flight, %s', l.members, l.in_flight, iif(l.is_open, 'open', 'closed')))
       || '; the messages say ' || iif(m.queue_id IS NULL, 'that it does not exist',
            format('%d messages, %d in flight, %s', m.members, m.in_flight, iif(m.is_open, 'open', 'closed')))
FROM (SELECT * FROM lane WHERE queue_id IN ({LIVING})) l FULL JOIN ({REAL_GROUPS}) m ON l.queue_id = m.queue_id AND l.group_name = m.group_name
WHERE (l.members, l.in_flight, l.is_open) IS NOT (m.members, m.in_flight, m.is_open);

-- name: wrong_priorities
-- Of messages that a receive would not find.
SELECT 'queue ' || m.queue_id || ', message ' || m.seq, 'its priority is ' || m.priority
       || iif(m.priority BETWEEN 1 AND 16, ', which its queue knows nothing of', ', which no message can have')
FROM message m NOT INDEXED JOIN queue q ON q.id = m.queue_id
WHERE m.priority <> {PRIORITY_DEFAULT} AND (q.ranked = 0 OR m.priority NOT BETWEEN 1 AND 16) AND q.deleted_at_ms IS NULL;

-- name: wrong_streams
SELECT CAST('queue ' || queue_id || ', stream ' || name AS BLOB), wrong FROM (
    SELECT queue_id, name, 'says that ' || closed || ' is the last batch that was acknowledged' AS wrong FROM stream
     WHERE closed < -1
    UNION ALL SELECT queue_id, name, 'its queue does not exist' FROM stream WHERE queue_id NOT IN (SELECT id FROM queue));

-- name: wrong_holds
SELECT CAST('queue ' || queue_id || ', hold ' || stream || '/' || batch || '/' || part AS BLOB), wrong FROM (
    SELECT *, 'says that it lost ' || lost AS wrong FROM hold WHERE lost < 0
    UNION ALL SELECT *, 'its queue does not exist' FROM hold WHERE queue_id NOT IN (SELECT id FROM queue)
    UNION ALL SELECT *, 'its stream does not exist: it could never be acknowledged' FROM hold
     WHERE queue_id IN ({LIVING}) AND (queue_id, stream) NOT IN (SELECT queue_id, name FROM stream));

-- ---- counting again, in data that has no counts yet

-- name: count_messages
INSERT INTO queue_count (queue_id, visible, in_flight, delayed) {REAL_COUNTS};

-- name: count_groups
INSERT INTO lane (queue_id, group_name, turn, is_open, members, in_flight) {REAL_GROUPS};

-- name: mark_ranked
UPDATE queue SET ranked = 1 WHERE id IN (SELECT queue_id FROM message WHERE priority <> {PRIORITY_DEFAULT});

-- Every query of the PostgreSQL store, by name. Constants such as `state = {VISIBLE}` are put into the text, not bound: a partial
-- index is only used for a condition that the planner can see. Where messages are named by their keys, the span of these is named as
-- well: the planner counts the living rows, and of a queue with few of them it may read everything, the dead included, which
-- stay for as long as somebody's transaction may want to see them.

-- part: NOW_MS
floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- part: IN_SPAN
BETWEEN (SELECT min(s) FROM unnest(%(seqs)s::bigint[]) s) AND (SELECT max(s) FROM unnest(%(seqs)s::bigint[]) s)

-- part: NAMED
queue_id = %(queue)s AND seq = ANY (%(seqs)s::bigint[]) AND seq {IN_SPAN}

-- ---- the frame

-- name: lock_shared
-- One after the other in the given (rising) order, and nobody waits for ever.
SELECT pg_advisory_xact_lock_shared(1447381324, id) FROM unnest(%(ids)s::int[]) AS id
WHERE set_config('lock_timeout', %(wait_ms)s::text, true) IS NOT NULL;

-- name: lock_exclusive
SELECT pg_advisory_xact_lock(1447381324, id) FROM unnest(%(ids)s::int[]) AS id
WHERE set_config('lock_timeout', %(wait_ms)s::text, true) IS NOT NULL;

-- name: look
-- The instant of the transaction, which later statements of it can name, and the epoch of the queues. A node that stands still
-- in the middle of a transaction loses it after a while: others wait for its locks.
SELECT t.now_ms, e.epoch, set_config('veil.now_ms', t.now_ms::text, true),
       set_config('idle_in_transaction_session_timeout', %(wait_ms)s::text, true)
FROM veil.epoch e, (SELECT coalesce(%(now_ms)s::bigint, {NOW_MS}) AS now_ms) t;

-- name: look_at_queues
-- Counts, the highest FIFO key, the next wake from an instant on (up to now, unless it is asked for whenever it is), the oldest
-- message where it is asked for, the returns of each queue, and the generation of its counts with the changes in it.
SELECT q.id, c.visible, c.in_flight, c.delayed, c.last_seq,
       (SELECT wake_at_ms FROM veil.message
         WHERE queue_id = q.id AND state <> {VISIBLE} AND wake_at_ms >= q.wake_from
           AND wake_at_ms <= CASE WHEN q.wants_next THEN 9223372036854775807
                                  ELSE nullif(current_setting('veil.now_ms', true), '')::bigint END
         ORDER BY wake_at_ms LIMIT 1),
       CASE WHEN q.wants_oldest THEN (SELECT seq FROM veil.message WHERE queue_id = q.id ORDER BY seq LIMIT 1) END,
       c.returns, c.generation, c.changes
FROM unnest(%(ids)s::int[], %(wakes_from)s::bigint[], %(wants_next)s::bool[], %(wants_oldest)s::bool[])
  AS q (id, wake_from, wants_next, wants_oldest)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(visible), 0)::bigint AS visible, coalesce(sum(in_flight), 0)::bigint AS in_flight,
           coalesce(sum(delayed), 0)::bigint AS delayed, coalesce(max(last_seq), 0) AS last_seq,
           coalesce(sum(returns), 0)::bigint AS returns, coalesce(max(generation), 0) AS generation,
           coalesce(sum(changes), 0)::int AS changes
    FROM veil.queue_count WHERE queue_id = q.id AND generation = (
        SELECT generation FROM veil.queue_count WHERE queue_id = q.id ORDER BY generation DESC LIMIT 1)) c;

-- name: numbers
SELECT nextval('veil.counter') FROM generate_series(1, %(count)s);

-- name: add_counts
INSERT INTO veil.queue_count (queue_id, generation, slot, visible, in_flight, delayed, last_seq, returns, changes)
SELECT id, generation, %(slot)s, visible, in_flight, delayed, last_seq, returns, 1
FROM unnest(%(ids)s::int[], %(generations)s::int[], %(visible)s::bigint[], %(in_flight)s::bigint[], %(delayed)s::bigint[],
            %(last_seq)s::bigint[], %(returns)s::bigint[])
  AS c (id, generation, visible, in_flight, delayed, last_seq, returns)
ON CONFLICT (queue_id, generation, slot) DO UPDATE
SET visible = queue_count.visible + excluded.visible, in_flight = queue_count.in_flight + excluded.in_flight,
    delayed = queue_count.delayed + excluded.delayed, last_seq = greatest(queue_count.last_seq, excluded.last_seq),
    returns = queue_count.returns + excluded.returns, changes = queue_count.changes + 1;

-- name: fold_counts
-- All rows of the present generation, which are all there are, into one of the next; under the queue's exclusive lock, which
-- nobody passes in the middle of a transaction. Not where somebody else has just done it.
WITH present AS (
    SELECT generation, sum(changes) AS changes FROM veil.queue_count WHERE queue_id = %(queue)s AND generation = (
        SELECT generation FROM veil.queue_count WHERE queue_id = %(queue)s ORDER BY generation DESC LIMIT 1)
    GROUP BY generation
), gone AS (
    DELETE FROM veil.queue_count WHERE queue_id = %(queue)s
       AND generation = (SELECT generation FROM present WHERE changes >= %(changes_min)s) RETURNING *
)
INSERT INTO veil.queue_count (queue_id, generation, slot, visible, in_flight, delayed, last_seq, returns)
SELECT queue_id, generation + 1, 0, sum(visible), sum(in_flight), sum(delayed), max(last_seq), sum(returns)
FROM gone GROUP BY queue_id, generation;

-- name: notify
SELECT pg_notify('veil', %(payload)s);

-- name: has_meta
SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'veil' AND tablename = 'meta';

-- name: read_meta
SELECT value FROM veil.meta WHERE name = %(name)s;

-- name: all_meta
SELECT name, value FROM veil.meta;

-- name: write_meta
INSERT INTO veil.meta (name, value) VALUES (%(name)s, %(value)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: settings
-- What the promises rest on.
SELECT current_setting('server_version_num')::int, current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('full_page_writes'), current_setting('server_encoding');

-- ---- queues

-- part: QUEUES
SELECT e.epoch, q.id, q.region, q.account, q.name, q.settings, q.tags, q.scope, q.created_wall_ms, q.modified_wall_ms,
       q.purged_at_ms, q.has_lanes, q.deleted_at_ms
FROM veil.epoch e LEFT JOIN veil.queue q

-- name: changed_queues
-- What a node must learn: everything that was changed after an epoch, and the epoch that it knows then.
{QUEUES} ON q.version > %(epoch)s;

-- name: living_queues
-- The same for a node that knows nothing.
{QUEUES} ON q.deleted_at_ms IS NULL;

-- name: raise_epoch
UPDATE veil.epoch SET epoch = epoch + 1 WHERE id = 1 RETURNING epoch;

-- name: insert_queue
INSERT INTO veil.queue (version, region, account, name, settings, tags, scope, has_lanes, created_wall_ms, modified_wall_ms)
VALUES (%(version)s, %(region)s, %(account)s, %(name)s, %(settings)s, %(tags)s, %(scope)s, %(has_lanes)s, %(wall_ms)s,
        %(wall_ms)s)
RETURNING id;

-- name: update_queue
UPDATE veil.queue SET version = %(version)s, settings = %(settings)s, tags = %(tags)s, modified_wall_ms = %(wall_ms)s
WHERE id = %(id)s;

-- name: mark_purged
UPDATE veil.queue SET version = %(version)s, purged_at_ms = %(now_ms)s WHERE id = %(id)s;

-- name: mark_grouped
UPDATE veil.queue SET version = %(version)s, has_lanes = true WHERE id = %(id)s;

-- name: mark_queue_deleted
UPDATE veil.queue SET version = %(version)s, deleted_at_ms = %(now_ms)s, deleted_by = %(caller)s WHERE id = %(id)s;

-- name: rest_name
INSERT INTO veil.queue_rest (region, account, name, deleted_at_ms)
VALUES (%(region)s, %(account)s, %(name)s, %(now_ms)s)
ON CONFLICT (region, account, name) DO UPDATE SET deleted_at_ms = excluded.deleted_at_ms;

-- name: rested_since
SELECT deleted_at_ms FROM veil.queue_rest WHERE region = %(region)s AND account = %(account)s AND name = %(name)s;

-- name: wake_name
DELETE FROM veil.queue_rest WHERE region = %(region)s AND account = %(account)s AND name = %(name)s;

-- name: deleted_queue
-- One queue that was deleted and still has rows to sweep, unless another node sweeps it.
SELECT id, region, account, name, deleted_at_ms, deleted_by FROM veil.queue
WHERE deleted_at_ms IS NOT NULL AND NOT swept LIMIT 1 FOR UPDATE SKIP LOCKED;

-- name: mark_swept
UPDATE veil.queue SET swept = true WHERE id = %(id)s;

-- name: forget_counts
DELETE FROM veil.queue_count WHERE queue_id = %(id)s;

-- ---- messages

-- name: insert_messages
INSERT INTO veil.message (seq, queue_id, state, wake_at_ms, due_at_ms, sent_wall_ms, message_id, group_name, deduplication_id,
                          trace_header, sender, message_type, body_bytes, attributes, body_md5, body, priority)
SELECT seq, queue_id, state, wake_at_ms, due_at_ms, %(wall_ms)s, message_id, group_name, deduplication_id, trace_header,
       sender, message_type, body_bytes, attributes, body_md5, body, priority
FROM unnest(%(seqs)s::bigint[], %(queues)s::int[], %(states)s::smallint[], %(wakes)s::bigint[], %(dues)s::bigint[],
            %(ids)s::text[], %(groups)s::text[], %(deduplications)s::text[], %(traces)s::text[], %(senders)s::text[],
            %(types)s::text[], %(sizes)s::int[], %(attributes)s::bytea[], %(digests)s::text[], %(bodies)s::text[],
            %(priorities)s::smallint[])
  AS m (seq, queue_id, state, wake_at_ms, due_at_ms, message_id, group_name, deduplication_id, trace_header, sender,
        message_type, body_bytes, attributes, body_md5, body, priority);

-- name: visible_quiet
-- Visible messages, in order, those that nobody else is about to take, without those of the groups named. The columns of all
-- message queries are those of core.message.StoredMessage.
SELECT {MESSAGE}
FROM veil.message
WHERE queue_id = %(queue)s AND state = {VISIBLE} AND (priority, seq) > (%(priority)s, %(after)s)
  AND (group_name IS NULL OR group_name <> ALL (%(noisy)s::text[]))
ORDER BY priority, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED;

-- name: visible_of_group
SELECT {MESSAGE}
FROM veil.message
WHERE queue_id = %(queue)s AND group_name = %(group)s AND state = {VISIBLE} AND (priority, seq) > (%(priority)s, %(after)s)
ORDER BY priority, seq LIMIT %(limit)s;

-- name: of_groups
-- The messages of some groups from their first on, in whatever state, group after group.
SELECT m.* FROM unnest(%(groups)s::text[]) WITH ORDINALITY AS g (name, place) CROSS JOIN LATERAL (
    SELECT {MESSAGE}
    FROM veil.message WHERE queue_id = %(queue)s AND group_name = g.name AND seq > %(after)s ORDER BY seq LIMIT %(limit)s) m
ORDER BY g.place, m.seq;

-- name: messages_by_seq
-- Messages of a queue in whatever state, by rising key.
SELECT {MESSAGE}
FROM veil.message WHERE {NAMED}
ORDER BY seq FOR UPDATE;

-- name: peek
-- Messages in whatever state that were sent between two wall times.
SELECT {MESSAGE}
FROM veil.message WHERE queue_id = %(queue)s AND seq > %(after)s AND seq <= %(up_to)s
  AND sent_wall_ms BETWEEN %(sent_after_ms)s AND %(sent_before_ms)s
ORDER BY seq LIMIT %(limit)s;

-- part: OPEN_LEASES
-- As `core.decide.open_lease` has it, of those chosen; what is spent stays as it was, still visible.
UPDATE veil.message SET
    state = CASE WHEN receive_count < %(receives_max)s THEN {IN_FLIGHT} ELSE state END,
    due_at_ms = CASE WHEN receive_count < %(receives_max)s THEN t.now_ms + %(visibility_ms)s END,
    wake_at_ms = CASE WHEN receive_count < %(receives_max)s
                      THEN least(t.now_ms + %(visibility_ms)s, (seq >> {COUNTER_BITS}) + %(retention_ms)s) END,
    received_at_ms = CASE WHEN receive_count < %(receives_max)s THEN t.now_ms ELSE received_at_ms END,
    delivery = CASE WHEN receive_count < %(receives_max)s THEN delivery + 1 ELSE delivery END,
    holder = CASE WHEN receive_count < %(receives_max)s THEN delivery + 1 ELSE holder END,
    receive_count = CASE WHEN receive_count < %(receives_max)s THEN receive_count + 1 ELSE receive_count END,
    first_received_wall_ms = CASE WHEN receive_count < %(receives_max)s
        THEN coalesce(first_received_wall_ms, %(wall_ms)s::bigint, t.now_ms) ELSE first_received_wall_ms END
FROM (SELECT current_setting('veil.now_ms')::bigint AS now_ms) t
WHERE queue_id = %(queue)s AND seq = ANY (ARRAY(SELECT seq FROM chosen))
  AND seq BETWEEN (SELECT min(seq) FROM chosen) AND (SELECT max(seq) FROM chosen)
RETURNING {MESSAGE}

-- name: claim
-- A shortcut past `core.decide.open_lease`, for receives of plain standard queues: the first that nobody else is about to
-- take are in flight from now on. Read first and decided then, a receive takes a round trip more, with its rows locked
-- meanwhile. Those that are spent come along as they were, still visible. In no particular order. Chosen once, whatever the
-- planner thinks: a choice that was made again would lock others.
WITH chosen AS MATERIALIZED (
    SELECT seq FROM veil.message WHERE queue_id = %(queue)s AND state = {VISIBLE}
      AND (priority, seq) >= (%(priority)s, %(from)s)
    ORDER BY priority, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
{OPEN_LEASES};

-- name: claim_bounded
-- The same for a receive of so many that their bodies have to be counted (`core.decide.ReceiveBudget`): no more once they come to
-- that many bytes. Receives of up to ten are spared the sum.
WITH visible AS MATERIALIZED (
    SELECT priority, seq, CASE WHEN receive_count < %(receives_max)s THEN body_bytes ELSE 0 END AS bytes FROM veil.message WHERE queue_id = %(queue)s AND state = {VISIBLE}
      AND (priority, seq) >= (%(priority)s, %(from)s)
    ORDER BY priority, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (
    SELECT seq FROM (SELECT seq, sum(bytes) OVER (ORDER BY priority, seq) - bytes AS before FROM visible) v
    WHERE before < %(bytes_max)s
)
{OPEN_LEASES};

-- name: take_held
-- A shortcut past `core.decide.decide_deletion`, for its common case: each receipt holds the open lease. It goes with BEGIN,
-- which spares a round trip.
DELETE FROM veil.message WHERE {NAMED}
  AND state + 0 = {IN_FLIGHT}
  AND due_at_ms > current_setting('veil.now_ms')::bigint
  AND (seq >> {COUNTER_BITS}) + %(retention_ms)s > current_setting('veil.now_ms')::bigint
  AND (seq, holder) IN (SELECT * FROM unnest(%(seqs)s::bigint[], %(holders)s::bigint[]))
RETURNING {HELD_MESSAGE};

-- name: held
-- What the rules need to know of messages, and what the journal tells: HeldMessage.
SELECT {HELD_MESSAGE} FROM veil.message WHERE {NAMED}
ORDER BY seq FOR UPDATE;

-- name: write_leases
-- Whatever has become of leases: the fields of LeaseState for each message.
UPDATE veil.message m SET state = n.state, due_at_ms = n.due_ms, received_at_ms = n.received_ms, delivery = n.delivery,
       holder = n.holder, receive_count = n.receive_count, first_received_wall_ms = n.first_ms, wake_at_ms = n.wake_ms
FROM unnest(%(seqs)s::bigint[], %(states)s::smallint[], %(dues)s::bigint[], %(received)s::bigint[], %(deliveries)s::int[],
            %(holders)s::bigint[], %(receive_counts)s::int[], %(firsts)s::bigint[], %(wakes)s::bigint[])
  AS n (seq, state, due_ms, received_ms, delivery, holder, receive_count, first_ms, wake_ms)
WHERE m.queue_id = %(queue)s AND m.seq = n.seq
  AND m.seq {IN_SPAN};

-- name: delete_messages
DELETE FROM veil.message WHERE {NAMED};

-- name: to_dead_letters
UPDATE veil.message m SET queue_id = %(target)s, seq = n.new_seq, state = {VISIBLE}, wake_at_ms = NULL, due_at_ms = NULL,
       holder = DEFAULT, deduplication_id = n.new_deduplication, dead_letter_source = %(source)s
FROM unnest(%(seqs)s::bigint[], %(new_seqs)s::bigint[], %(deduplications)s::text[]) AS n (old_seq, new_seq, new_deduplication)
WHERE m.queue_id = %(queue)s AND m.seq = n.old_seq AND m.seq {IN_SPAN};

-- name: oldest_visible
SELECT min(seq) FROM veil.message WHERE queue_id = %(queue)s AND state = {VISIBLE};

-- ---- what becomes due

-- name: due
-- Hidden messages whose time has come, unless another transaction is about them right now.
SELECT {HELD_MESSAGE} FROM veil.message
WHERE queue_id = %(queue)s AND state <> {VISIBLE} AND wake_at_ms <= %(now_ms)s
ORDER BY wake_at_ms, seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED;

-- name: expired
-- Visible messages that are past their retention.
SELECT {HELD_MESSAGE} FROM veil.message
WHERE queue_id = %(queue)s AND state = {VISIBLE} AND seq < %(below)s
ORDER BY seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED;

-- name: set_wakes
UPDATE veil.message m SET wake_at_ms = n.wake_ms FROM unnest(%(seqs)s::bigint[], %(wakes)s::bigint[]) AS n (seq, wake_ms)
WHERE m.queue_id = %(queue)s AND m.seq = n.seq
  AND m.seq {IN_SPAN};

-- name: reschedule_hidden
-- After an edit: the new retention counts, and where a delay is given it reaches the messages that wait. Those for which nothing changes
-- are left as they are, which mostly are all.
UPDATE veil.message m SET due_at_ms = n.due_ms, wake_at_ms = least(n.due_ms, (m.seq >> {COUNTER_BITS}) + %(retention_ms)s)
FROM (SELECT seq, CASE WHEN state = {DELAYED} THEN coalesce((seq >> {COUNTER_BITS}) + %(delay_ms)s::bigint, due_at_ms) ELSE due_at_ms END AS due_ms
      FROM veil.message WHERE queue_id = %(queue)s AND state <> {VISIBLE}) n
WHERE m.queue_id = %(queue)s AND m.seq = n.seq
  AND (m.due_at_ms, m.wake_at_ms) IS DISTINCT FROM (n.due_ms, least(n.due_ms, (m.seq >> {COUNTER_BITS}) + %(retention_ms)s));

-- name: visible_anywhere
SELECT queue_id, sum(visible)::bigint FROM veil.queue_count GROUP BY queue_id HAVING sum(visible) > 0;

-- name: forget_old
-- Whatever was kept until now; and queues: nodes learn of a deletion by its row, so that stays for a while.
WITH d AS (DELETE FROM veil.deduplication WHERE until_ms <= %(now_ms)s),
     s AS (DELETE FROM veil.repeatable_send WHERE until_ms <= %(now_ms)s),
     a AS (DELETE FROM veil.attempt WHERE until_ms <= %(now_ms)s),
     r AS (DELETE FROM veil.queue_rest WHERE deleted_at_ms <= %(rested_ms)s)
DELETE FROM veil.queue WHERE deleted_at_ms < %(before_ms)s AND swept;

-- ---- sweeping a purged or deleted queue

-- name: sweep
DELETE FROM veil.message WHERE queue_id = %(queue)s AND seq IN (
    SELECT seq FROM veil.message WHERE queue_id = %(queue)s AND seq <= %(up_to)s ORDER BY seq LIMIT %(limit)s FOR UPDATE)
RETURNING {HELD_MESSAGE};

-- name: latest
SELECT max(seq) FROM veil.message WHERE queue_id = %(queue)s;

-- name: drop_memory
-- What a purge forgets beside the messages.
WITH d AS (DELETE FROM veil.deduplication WHERE queue_id = %(queue)s)
DELETE FROM veil.attempt WHERE queue_id = %(queue)s;

-- name: drop_the_rest
-- What goes with a queue besides.
WITH l AS (DELETE FROM veil.lane WHERE queue_id = %(queue)s),
     s AS (DELETE FROM veil.repeatable_send WHERE queue_id = %(queue)s),
     t AS (DELETE FROM veil.stream WHERE queue_id = %(queue)s)
DELETE FROM veil.hold WHERE queue_id = %(queue)s;

-- ---- groups: a row of `lane` for each that has messages

-- name: change_groups
-- More or fewer messages in groups, of which so many are in flight. A group that is new gets the last turn.
INSERT INTO veil.lane (queue_id, group_name, turn, is_open, members, in_flight)
SELECT %(queue)s, name, nextval('veil.counter'), false, members, in_flight
FROM unnest(%(groups)s::text[], %(members)s::bigint[], %(in_flight)s::bigint[]) AS l (name, members, in_flight)
ON CONFLICT (queue_id, group_name) DO UPDATE
SET members = lane.members + excluded.members, in_flight = lane.in_flight + excluded.in_flight;

-- name: serve_groups
-- The groups were served, in this order: they go behind all the others. Materialized, or a plan might draw the numbers once
-- for every group, in the order of the rows.
WITH n AS MATERIALIZED (SELECT name, nextval('veil.counter') AS turn FROM unnest(%(groups)s::text[]) AS g (name))
UPDATE veil.lane l SET turn = n.turn FROM n WHERE l.queue_id = %(queue)s AND l.group_name = n.name;

-- name: drop_empty_groups
DELETE FROM veil.lane WHERE queue_id = %(queue)s AND group_name = ANY (%(groups)s::text[]) AND members <= 0;

-- name: refresh_groups
-- FIFO: a group is open while its first message is visible.
UPDATE veil.lane l SET is_open = coalesce((SELECT m.state = {VISIBLE} FROM veil.message m
    WHERE m.queue_id = %(queue)s AND m.group_name = l.group_name ORDER BY m.seq LIMIT 1), false)
WHERE l.queue_id = %(queue)s AND l.group_name = ANY (%(groups)s::text[]) RETURNING is_open, members;

-- name: open_groups
SELECT group_name FROM veil.lane WHERE queue_id = %(queue)s AND is_open ORDER BY turn LIMIT %(limit)s;

-- name: loud_groups
-- Fair queues: the groups that may be noisy.
SELECT group_name, in_flight FROM veil.lane WHERE queue_id = %(queue)s AND in_flight >= {NOISY_COUNT_MIN};

-- ---- deduplication, repeated sends and attempts

-- name: find_duplicates
SELECT d.scope, d.dedup_id, d.seq, d.message_id
FROM unnest(%(scopes)s::text[], %(dedup_ids)s::text[]) AS n (scope, dedup_id)
JOIN veil.deduplication d ON d.queue_id = %(queue)s AND d.scope = n.scope AND d.dedup_id = n.dedup_id
WHERE d.until_ms > %(now_ms)s;

-- name: remember_duplicates
INSERT INTO veil.deduplication (queue_id, scope, dedup_id, until_ms, seq, message_id)
SELECT %(queue)s, scope, dedup_id, %(until_ms)s, seq, message_id
FROM unnest(%(scopes)s::text[], %(dedup_ids)s::text[], %(seqs)s::bigint[], %(ids)s::text[]) AS n (scope, dedup_id, seq, message_id)
ON CONFLICT (queue_id, scope, dedup_id) DO UPDATE
SET until_ms = excluded.until_ms, seq = excluded.seq, message_id = excluded.message_id;

-- name: forget_send
DELETE FROM veil.repeatable_send WHERE queue_id = %(queue)s AND retry_key = %(retry_key)s AND until_ms <= %(now_ms)s;

-- name: find_sends
-- Those of some sends that were known, also when that is long ago.
SELECT r.queue_id, r.retry_key, r.until_ms, r.sent
FROM unnest(%(queues)s::int[], %(retry_keys)s::bytea[]) AS n (queue_id, retry_key)
JOIN veil.repeatable_send r ON r.queue_id = n.queue_id AND r.retry_key = n.retry_key;

-- name: remember_sends
-- An old one under a key was forgotten before; a fresh one is a collision, after which the transaction is redone and finds it.
INSERT INTO veil.repeatable_send (queue_id, retry_key, until_ms, sent)
SELECT queue_id, retry_key, %(until_ms)s, sent
FROM unnest(%(queues)s::int[], %(retry_keys)s::bytea[], %(sent)s::bytea[]) AS n (queue_id, retry_key, sent);

-- name: find_attempt
SELECT claims FROM veil.attempt WHERE queue_id = %(queue)s AND attempt_id = %(attempt)s AND until_ms > %(now_ms)s FOR UPDATE;

-- name: remember_attempt
INSERT INTO veil.attempt (queue_id, attempt_id, until_ms, claims) VALUES (%(queue)s, %(attempt)s, %(until_ms)s, %(claims)s)
ON CONFLICT (queue_id, attempt_id) DO UPDATE SET until_ms = excluded.until_ms, claims = excluded.claims;

-- ---- the outbox

-- name: add_to_outbox
INSERT INTO veil.outbox (at_ms, packed) VALUES (%(at_ms)s, %(packed)s);

-- name: add_outbox_count
INSERT INTO veil.outbox_count (slot, rows, packed_bytes) VALUES (%(slot)s, %(rows)s, %(packed_bytes)s)
ON CONFLICT (slot) DO UPDATE SET rows = outbox_count.rows + excluded.rows,
    packed_bytes = outbox_count.packed_bytes + excluded.packed_bytes;

-- name: fold_outbox_counts
-- Into one row. Whoever adds to a row that goes waits for this to end, and makes it again.
WITH gone AS (DELETE FROM veil.outbox_count RETURNING rows, packed_bytes)
INSERT INTO veil.outbox_count (slot, rows, packed_bytes)
SELECT -1, coalesce(sum(rows), 0), coalesce(sum(packed_bytes), 0) FROM gone
ON CONFLICT (slot) DO UPDATE SET rows = outbox_count.rows + excluded.rows,
    packed_bytes = outbox_count.packed_bytes + excluded.packed_bytes;

-- ---- nodes and duties; their time is the database's own

-- name: take_number
-- The lowest number that no living node has.
INSERT INTO veil.node (number, name, seen_ms)
SELECT n, %(name)s, {NOW_MS}
FROM generate_series(0, 1000) AS n
WHERE NOT EXISTS (SELECT 1 FROM veil.node WHERE number = n
                  AND seen_ms > {NOW_MS} - %(dead_after_ms)s)
ORDER BY n LIMIT 1
ON CONFLICT (number) DO UPDATE SET name = excluded.name, seen_ms = excluded.seen_ms
RETURNING number;

-- name: lock_nodes
SELECT pg_advisory_xact_lock(1447381325, 0);

-- name: beat
UPDATE veil.node SET seen_ms = {NOW_MS}
WHERE number = %(number)s AND name = %(name)s RETURNING number;

-- name: touch_node
-- Changes a row without saying anything by it: a commit of this has to reach the disk, and the standby.
UPDATE veil.node SET name = name WHERE number = %(number)s AND name = %(name)s;

-- part: LEASE_TIME
beat_ms, (SELECT min(seen_ms) FROM veil.node WHERE seen_ms BETWEEN t.now_ms - %(silent_max_ms)s AND t.now_ms - %(silent_ms)s),
       from_ms, to_ms, kind, healthy_ms, gap_ms

-- name: lease_time
-- When a node last ran, the last sign of one that has been silent for so long, and the latest trouble.
SELECT {LEASE_TIME} FROM veil.lease_time, (SELECT %(now_ms)s::bigint AS now_ms) t;

-- name: hold_lease_time
-- The same to be changed, and what time it is.
SELECT t.now_ms, {LEASE_TIME} FROM veil.lease_time, (SELECT {NOW_MS} AS now_ms) t FOR UPDATE OF lease_time;

-- name: await_nodes
-- The other nodes that were alive then count as silent from now on, not as dead.
UPDATE veil.node SET seen_ms = %(seen_ms)s WHERE name <> %(name)s AND seen_ms BETWEEN %(since_ms)s AND %(seen_ms)s;

-- name: write_lease_time
UPDATE veil.lease_time SET beat_ms = %(beat_ms)s, from_ms = %(from_ms)s, to_ms = %(to_ms)s, kind = %(kind)s,
    healthy_ms = %(healthy_ms)s, gap_ms = coalesce(%(gap_ms)s, gap_ms);

-- name: others_alive
SELECT count(*)::int FROM veil.node
WHERE name <> %(name)s AND seen_ms > {NOW_MS} - %(dead_after_ms)s;

-- name: leave
DELETE FROM veil.node WHERE number = %(number)s AND name = %(name)s;

-- name: share_heard
WITH own AS (
    INSERT INTO veil.heard (name, at_ms, packed) VALUES (%(name)s, {NOW_MS}, %(packed)s)
    ON CONFLICT (name) DO UPDATE SET at_ms = excluded.at_ms, packed = excluded.packed
), old AS (
    DELETE FROM veil.heard WHERE at_ms < {NOW_MS} - %(kept_ms)s AND name <> %(name)s
)
SELECT h.packed
FROM veil.heard h
FULL JOIN (SELECT name FROM veil.node WHERE seen_ms > {NOW_MS} - %(dead_after_ms)s) n ON n.name = h.name
WHERE coalesce(h.name, n.name) <> %(name)s;

-- name: take_duty
-- Taken, or kept, unless another node has it and is in time.
INSERT INTO veil.duty (name, node, until_ms)
VALUES (%(duty)s, %(node)s, {NOW_MS} + %(lease_ms)s)
ON CONFLICT (name) DO UPDATE SET node = excluded.node, until_ms = excluded.until_ms
WHERE duty.node = excluded.node OR duty.until_ms <= {NOW_MS}
RETURNING node;

-- name: leave_duties
DELETE FROM veil.duty WHERE node = %(node)s;

-- ---- exporting the outbox

-- name: read_export
SELECT done, last, day FROM veil.export WHERE id = 1 FOR UPDATE;

-- name: outbox_sizes
-- What a plan is made of: rows without a number, of transactions older than every one that is still open.
SELECT id, at_ms, octet_length(packed) FROM veil.outbox
WHERE number IS NULL AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT %(limit)s;

-- name: number_outbox
UPDATE veil.outbox o SET number = %(done)s + n.place FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS n (id, place)
WHERE o.id = n.id;

-- name: write_plan
UPDATE veil.export SET last = %(last)s, day = %(day)s WHERE id = 1;

-- name: finish_plan
UPDATE veil.export SET done = last, last = NULL, day = NULL WHERE id = 1;

-- name: outbox_rows
SELECT number, packed FROM veil.outbox WHERE number > %(after)s AND number <= %(last)s ORDER BY number LIMIT %(limit)s;

-- name: waiting_rows
-- Rows that have no number yet, for whoever only looks.
SELECT %(from)s::bigint + id, packed FROM veil.outbox WHERE number IS NULL AND id > %(after)s::bigint - %(from)s::bigint
ORDER BY id LIMIT %(limit)s;

-- name: sweep_outbox
DELETE FROM veil.outbox WHERE id IN (
    SELECT o.id FROM veil.outbox o JOIN veil.export e ON o.number <= e.done ORDER BY o.number LIMIT %(limit)s
    FOR UPDATE OF o SKIP LOCKED)
RETURNING octet_length(packed);

-- name: outbox_size
-- Rows, bytes, and the instant of the oldest.
SELECT coalesce(sum(rows), 0)::bigint, coalesce(sum(packed_bytes), 0)::bigint,
       coalesce((SELECT o.at_ms FROM veil.outbox o, veil.export e WHERE o.number > e.done ORDER BY o.number LIMIT 1),
                (SELECT at_ms FROM veil.outbox WHERE number IS NULL ORDER BY xid, id LIMIT 1)),
       count(*)::int
FROM veil.outbox_count;

-- ---- move tasks and chosen redrives

-- part: MOVE_TASKS
SELECT id, source, destination, rate_per_s, status, moved, to_move, started_wall_ms, failure, scan FROM veil.move_task

-- name: active_move_of
SELECT id FROM veil.move_task WHERE source = %(source)s AND status IN ('RUNNING', 'CANCELLING');

-- name: insert_move
INSERT INTO veil.move_task (id, source, destination, rate_per_s, status, moved, to_move, started_wall_ms, scan, caller)
VALUES (%(id)s, %(source)s, %(destination)s, %(rate_per_s)s, %(status)s, %(moved)s, %(to_move)s, %(started_wall_ms)s,
        %(scan)s, %(caller)s);

-- name: move_caller
SELECT caller FROM veil.move_task WHERE id = %(id)s;

-- name: find_move
{MOVE_TASKS}
WHERE id = %(id)s FOR UPDATE;

-- name: list_moves
{MOVE_TASKS}
WHERE source = %(source)s ORDER BY number DESC LIMIT %(limit)s;

-- name: drop_moves
DELETE FROM veil.move_task WHERE source = %(source)s;

-- name: active_moves
{MOVE_TASKS}
WHERE status IN ('RUNNING', 'CANCELLING') ORDER BY number;

-- name: advance_move
UPDATE veil.move_task SET status = %(status)s, moved = %(moved)s, failure = %(failure)s, scan = %(scan)s
WHERE id = %(id)s;

-- name: forget_moves
-- Only the latest tasks of a source are ever listed.
DELETE FROM veil.move_task WHERE source = %(source)s AND status NOT IN ('RUNNING', 'CANCELLING') AND number NOT IN (
    SELECT number FROM veil.move_task WHERE source = %(source)s ORDER BY number DESC LIMIT 10);

-- name: visible_oldest
SELECT {MESSAGE}
FROM veil.message WHERE queue_id = %(queue)s AND state = {VISIBLE} ORDER BY seq LIMIT %(limit)s;

-- name: redrive_messages
-- Out of one queue and into others, as new messages.
UPDATE veil.message m SET
    queue_id = n.target, seq = n.new_seq, state = n.new_state, wake_at_ms = n.new_wake, due_at_ms = n.new_due,
    received_at_ms = NULL, first_received_wall_ms = NULL, sent_wall_ms = %(wall_ms)s, delivery = DEFAULT, holder = DEFAULT,
    receive_count = DEFAULT, message_id = n.new_id, deduplication_id = n.new_deduplication, dead_letter_source = NULL,
    body_bytes = CASE WHEN changed THEN new_size ELSE body_bytes END,
    message_type = CASE WHEN changed THEN new_type ELSE message_type END,
    body_md5 = CASE WHEN changed THEN new_digest ELSE body_md5 END,
    attributes = CASE WHEN changed THEN new_attributes ELSE attributes END,
    body = CASE WHEN changed THEN new_body ELSE body END
FROM unnest(%(seqs)s::bigint[], %(targets)s::int[], %(new_seqs)s::bigint[], %(ids)s::text[], %(deduplications)s::text[],
            %(states)s::smallint[], %(wakes)s::bigint[], %(dues)s::bigint[], %(changed)s::bool[], %(attributes)s::bytea[],
            %(digests)s::text[], %(bodies)s::text[], %(sizes)s::int[], %(types)s::text[])
  AS n (old_seq, target, new_seq, new_id, new_deduplication, new_state, new_wake, new_due, changed, new_attributes,
        new_digest, new_body, new_size, new_type)
WHERE m.queue_id = %(queue)s AND m.seq = n.old_seq;

-- ---- holds

-- name: open_stream
INSERT INTO veil.stream (queue_id, name, owner, closed, used_at_ms)
VALUES (%(queue)s, %(stream)s, %(owner)s, -1, %(now_ms)s)
ON CONFLICT (queue_id, name) DO UPDATE SET owner = excluded.owner, used_at_ms = excluded.used_at_ms;

-- name: use_stream
INSERT INTO veil.stream (queue_id, name, closed, used_at_ms) VALUES (%(queue)s, %(stream)s, -1, %(now_ms)s)
ON CONFLICT (queue_id, name) DO UPDATE SET used_at_ms = excluded.used_at_ms
RETURNING owner, closed;

-- name: touch_stream
-- Used now, if it is known.
UPDATE veil.stream SET used_at_ms = %(now_ms)s WHERE queue_id = %(queue)s AND name = %(stream)s RETURNING owner, closed;

-- name: close_stream
UPDATE veil.stream SET closed = greatest(closed, %(batch)s) WHERE queue_id = %(queue)s AND name = %(stream)s;

-- name: find_hold
SELECT lost, members FROM veil.hold
WHERE queue_id = %(queue)s AND stream = %(stream)s AND batch = %(batch)s AND part = %(part)s;

-- name: next_holds
-- The stream's holds after one, up to a batch.
SELECT batch, part, lost, members FROM veil.hold
WHERE queue_id = %(queue)s AND stream = %(stream)s AND (batch, part) > (%(batch)s, %(part)s) AND batch <= %(up_to)s
ORDER BY batch, part LIMIT %(limit)s;

-- name: write_hold
INSERT INTO veil.hold (queue_id, stream, batch, part, lost, members)
VALUES (%(queue)s, %(stream)s, %(batch)s, %(part)s, %(lost)s, %(members)s)
ON CONFLICT (queue_id, stream, batch, part) DO UPDATE SET lost = excluded.lost, members = excluded.members;

-- name: drop_hold
DELETE FROM veil.hold WHERE queue_id = %(queue)s AND stream = %(stream)s AND batch = %(batch)s AND part = %(part)s;

-- name: group_seqs
-- FIFO: which messages the groups have, in whatever state.
SELECT group_name, seq FROM veil.message
WHERE queue_id = %(queue)s AND group_name = ANY (%(groups)s::text[]) AND seq >= %(from)s AND seq <= %(up_to)s ORDER BY seq;

-- name: forget_streams
-- With their holds.
WITH gone AS (DELETE FROM veil.stream WHERE used_at_ms <= %(before_ms)s RETURNING queue_id, name)
DELETE FROM veil.hold h USING gone WHERE h.queue_id = gone.queue_id AND h.stream = gone.name;

-- ---- several servers

-- name: number_of_server
SELECT number FROM veil.server WHERE store_id = %(store_id)s;

-- name: add_server
-- The table is locked: two nodes that start with the same new server must not both give it a number.
INSERT INTO veil.server (number, store_id)
SELECT coalesce(max(number) + 1, 0), %(store_id)s FROM veil.server
ON CONFLICT (store_id) DO NOTHING;

-- name: has_queues
SELECT EXISTS (SELECT FROM veil.queue);

-- name: placements
SELECT region, account, name, server FROM veil.placement;

-- name: placement_of
SELECT server FROM veil.placement WHERE region = %(region)s AND account = %(account)s AND name = %(name)s;

-- name: place
INSERT INTO veil.placement (region, account, name, server) VALUES (%(region)s, %(account)s, %(name)s, %(server)s)
ON CONFLICT DO NOTHING;

-- name: unplace
DELETE FROM veil.placement WHERE region = %(region)s AND account = %(account)s AND name = %(name)s;

-- name: note_carried
INSERT INTO veil.carried (queue_id, seq, at_ms)
SELECT %(queue)s, seq, %(now_ms)s FROM unnest(%(seqs)s::bigint[]) AS seq
ON CONFLICT DO NOTHING RETURNING seq;

-- name: forget_carried
DELETE FROM veil.carried WHERE queue_id = %(queue)s AND at_ms < %(before_ms)s AND seq & 63 = %(server)s;

-- name: adopt_message
INSERT INTO veil.message (seq, queue_id, state, priority, wake_at_ms, due_at_ms, first_received_wall_ms, sent_wall_ms, delivery,
                          receive_count, body_bytes, message_id, group_name, deduplication_id, dead_letter_source,
                          trace_header, sender, message_type, body_md5, attributes, body)
VALUES (%(seq)s, %(queue)s, %(state)s, %(priority)s, %(wake_at_ms)s, %(due_at_ms)s, %(first_received_wall_ms)s, %(sent_wall_ms)s,
        %(delivery)s, %(receive_count)s, %(body_bytes)s, %(message_id)s, %(group)s, %(deduplication_id)s, %(dead_letter_source)s,
        %(trace_header)s, %(sender)s, %(message_type)s, %(body_md5)s, %(attributes)s, %(body)s);

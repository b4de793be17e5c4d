-- Every query of the SQLite store, by name. A constant such as `state = {VISIBLE}` is put into the text on purpose: a partial index is only used
-- for a condition that the planner can see.

-- part: OPEN_LEASE
-- The holder's lease is open: holder, queue, now, the first seq that is not past its retention.
holder = ?1 AND queue_id = ?2 AND state = {IN_FLIGHT} AND due_at_ms > ?3 AND seq >= ?4

-- part: ASKED
-- The messages that are asked for, one after the other. Of a list behind IN SQLite first makes a table: a quarter more for a look at ten.
(VALUES :rows) AS asked CROSS JOIN message ON seq = asked.column1

-- Each message stands in exactly one of these four: queue.
-- part: ALONE
FROM message INDEXED BY visible_alone
WHERE queue_id = ?1 AND state = {VISIBLE} AND group_name IS NULL AND priority = {PRIORITY_DEFAULT}

-- part: GROUPED
FROM message INDEXED BY visible_grouped
WHERE queue_id = ?1 AND state = {VISIBLE} AND group_name IS NOT NULL AND priority = {PRIORITY_DEFAULT}

-- part: RANKED
FROM message INDEXED BY ranked_by_age WHERE queue_id = ?1 AND state = {VISIBLE} AND priority <> {PRIORITY_DEFAULT}

-- part: HIDDEN
FROM message INDEXED BY hidden WHERE queue_id = ?1 AND state <> {VISIBLE}

-- name: read_mark
-- The clock's high-water mark, the highest order key, the outbox's last number and size.
SELECT engine_ms, wall_ms, boot_ms, boot_id, last_seq, outbox_last, outbox_bytes FROM clock_mark WHERE id = 1;

-- name: write_mark
-- With every commit.
INSERT OR REPLACE INTO clock_mark (id, engine_ms, wall_ms, boot_ms, boot_id, last_seq, outbox_last, outbox_bytes)
VALUES (1, ?, ?, ?, ?, ?, ?, ?);

-- name: read_meta
SELECT value FROM meta WHERE name = ?;

-- name: write_meta
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);

-- ---- queues

-- name: load_queues
-- Everything about the living queues that is kept in memory.
SELECT q.id, q.region, q.account, q.name, q.settings, q.tags, q.scope, q.created_wall_ms, q.modified_wall_ms, q.purged_at_ms,
       c.visible, c.in_flight, c.delayed,
       EXISTS (SELECT 1 FROM lane WHERE lane.queue_id = q.id), q.ranked
FROM queue q JOIN queue_count c ON c.queue_id = q.id
WHERE q.deleted_at_ms IS NULL;

-- name: queue_settings
SELECT settings FROM queue WHERE id = ?;

-- name: insert_queue
INSERT INTO queue (region, account, name, settings, tags, scope, created_wall_ms, modified_wall_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_count
INSERT INTO queue_count (queue_id, visible, in_flight, delayed) VALUES (?, 0, 0, 0);

-- name: update_queue
UPDATE queue SET settings = ?, tags = ?, modified_wall_ms = ? WHERE id = ?;

-- name: write_count
UPDATE queue_count SET visible = ?, in_flight = ?, delayed = ? WHERE queue_id = ?;

-- name: mark_ranked
UPDATE queue SET ranked = 1 WHERE id = ?;

-- name: mark_purged
UPDATE queue SET purged_at_ms = ? WHERE id = ?;

-- name: mark_queue_deleted
UPDATE queue SET deleted_at_ms = ?, deleted_by = ? WHERE id = ?;

-- name: rest_name
INSERT OR REPLACE INTO queue_rest (region, account, name, deleted_at_ms) VALUES (?, ?, ?, ?);

-- name: forget_rests
DELETE FROM queue_rest WHERE deleted_at_ms <= ?;

-- name: rested_since
SELECT deleted_at_ms FROM queue_rest WHERE region = ? AND account = ? AND name = ?;

-- name: wake_name
DELETE FROM queue_rest WHERE region = ? AND account = ? AND name = ?;

-- name: deleted_queue
-- One queue that was deleted and still has rows to sweep.
SELECT id, region, account, name, deleted_at_ms, deleted_by FROM queue WHERE deleted_at_ms IS NOT NULL LIMIT 1;

-- name: forget_queue
DELETE FROM queue WHERE id = ?;

-- name: forget_count
DELETE FROM queue_count WHERE queue_id = ?;

-- ---- messages

-- name: insert_message
INSERT INTO message (seq, queue_id, state, wake_at_ms, due_at_ms, sent_wall_ms, message_id, group_name, deduplication_id,
                     trace_header, sender, message_type, body_bytes, attributes, body_md5, body, priority)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: visible_alone
-- Visible messages of ordinary priority without a group, in order: queue, after, limit. The columns of all message queries are
-- those of StoredMessage.
SELECT {MESSAGE} {ALONE} AND seq > ?2 ORDER BY seq LIMIT ?3;

-- name: first_as_received
-- A shortcut past `core.decide.open_leases`, with `open_leases` below: the same messages as a receive with a visibility leaves them. To
-- decide each one's lease, and to write it into the message, takes a ninth of a receive of ten. Of StoredMessage what is not the same
-- for all of them, in its order. Queue, the seq behind which to read on (lease_log.py), limit, wall time.
SELECT seq, message_id, body, body_md5, attributes, trace_header, sender, sent_wall_ms, deduplication_id, dead_letter_source,
       receive_count + 1, coalesce(first_received_wall_ms, ?4), delivery + 1, message_type, body_bytes
{ALONE} AND seq > ?2 ORDER BY seq LIMIT ?3;

-- name: open_leases
-- Of what `first_as_received` has found: deadline, receive, its wall time, retention, seqs. As `write_leases` in all else.
UPDATE OR FAIL message SET state = {IN_FLIGHT}, due_at_ms = ?1, received_at_ms = ?2, delivery = delivery + 1, holder = delivery + 1,
       receive_count = receive_count + 1, first_received_wall_ms = coalesce(first_received_wall_ms, ?3),
       wake_at_ms = CASE WHEN ?1 > (seq >> {COUNTER_BITS}) + ?4 THEN (seq >> {COUNTER_BITS}) + ?4 ELSE ?1 END
WHERE seq IN (:seqs) AND state = {VISIBLE};

-- name: visible_grouped
-- Visible messages of ordinary priority that have a group, in order, whatever the group.
SELECT {MESSAGE} {GROUPED} AND seq > ?2 ORDER BY seq LIMIT ?3;

-- name: visible_ranked
-- Visible messages of another priority than the ordinary one, grouped or not, after one of them: queue, priority and seq of
-- that one, the last priority, limit.
SELECT {MESSAGE}
FROM message INDEXED BY visible_ranked
WHERE queue_id = ?1 AND state = {VISIBLE} AND priority <> {PRIORITY_DEFAULT} AND (priority, seq) > (?2, ?3) AND priority <= ?4
ORDER BY priority, seq LIMIT ?5;

-- name: visible_oldest
-- Visible messages by age alone, of whatever priority and group: queue, the seq up to which those without a group have leases that are
-- not in their rows (lease_log.py), limit.
SELECT {MESSAGE}
FROM message WHERE seq IN (
    SELECT seq FROM (SELECT seq {ALONE} AND seq > ?2 ORDER BY seq LIMIT ?3)
    UNION ALL SELECT seq FROM (SELECT seq {GROUPED} ORDER BY seq LIMIT ?3)
    UNION ALL SELECT seq FROM (SELECT seq {RANKED} ORDER BY seq LIMIT ?3)
    ORDER BY 1 LIMIT ?3)
ORDER BY seq;

-- name: of_group
-- The messages of one group from its first on, in whatever state.
SELECT {MESSAGE}
FROM message INDEXED BY grouped
WHERE queue_id = ? AND group_name = ? AND seq > ? ORDER BY seq LIMIT ?;

-- name: visible_of_group
-- The visible messages of one group of a standard queue, in order.
SELECT {MESSAGE}
FROM message INDEXED BY grouped
WHERE queue_id = ? AND group_name = ? AND seq > ? AND +state = {VISIBLE} ORDER BY seq LIMIT ?;

-- name: waiting_groups
-- Fair queues: groups that may have something visible, by a seq that none of their messages is below. Queue, after, a JSON list of
-- those to leave out, limit.
SELECT group_name, turn FROM lane INDEXED BY lane_waiting
WHERE queue_id = ?1 AND is_open = 0 AND members > in_flight AND turn > ?2 AND group_name NOT IN (SELECT value FROM json_each(?3))
ORDER BY turn LIMIT ?4;

-- name: head_of_group
-- The first visible message of a group behind a seq.
SELECT seq FROM message INDEXED BY grouped
WHERE queue_id = ? AND group_name = ? AND seq > ? AND +state = {VISIBLE} ORDER BY seq LIMIT 1;

-- name: message_by_seq
SELECT {MESSAGE}
FROM message WHERE seq = ?;

-- name: message_in_queue
SELECT {MESSAGE}
FROM message WHERE seq = ? AND queue_id = ?;

-- part: NEXT_MESSAGES
FROM message WHERE seq IN (
    SELECT seq FROM (SELECT seq {ALONE} AND seq > ?2 AND seq <= ?4 ORDER BY seq LIMIT ?3)
    UNION ALL SELECT seq FROM (SELECT seq {GROUPED} AND seq > ?2 AND seq <= ?4 ORDER BY seq LIMIT ?3)
    UNION ALL SELECT seq FROM (SELECT seq {RANKED} AND seq > ?2 AND seq <= ?4 ORDER BY seq LIMIT ?3)
    UNION ALL SELECT seq FROM (SELECT seq {HIDDEN} AND seq > ?2 AND seq <= ?4 ORDER BY seq LIMIT ?3)
    ORDER BY 1 LIMIT ?3)
ORDER BY seq

-- name: peek
-- Messages in whatever state: queue, after, limit, up to.
SELECT {MESSAGE}
{NEXT_MESSAGES};

-- name: peek_times
-- The same, only when they were sent.
SELECT seq, sent_wall_ms
{NEXT_MESSAGES};

-- name: held
-- What the rules need to know of messages, and what the journal tells: HeldMessage. Queue, seqs.
SELECT {HELD_MESSAGE} FROM {ASKED} WHERE queue_id = ?1;

-- name: write_leases
-- Whatever has become of leases, of one or of many that are alike: the fields of LeaseState, retention, seqs. OR FAIL, and CASE instead of
-- min(), which might fail: or SQLite would copy every page for the case that it fails halfway, a twentieth of a receive of ten. What fails
-- so is rolled back with its whole group.
UPDATE OR FAIL message SET state = ?1, due_at_ms = ?2, received_at_ms = ?3, delivery = ?4, holder = ?5, receive_count = ?6,
       first_received_wall_ms = ?7,
       wake_at_ms = CASE WHEN ?2 > (seq >> {COUNTER_BITS}) + ?8 THEN (seq >> {COUNTER_BITS}) + ?8 ELSE ?2 END
WHERE seq IN (:seqs);

-- name: to_dead_letters
-- Queue, source, new seq, deduplication id, seq. One row, changed in place: it is always in exactly one queue.
UPDATE message SET queue_id = ?, dead_letter_source = ?, seq = ?, deduplication_id = ?, state = {VISIBLE}, wake_at_ms = NULL,
       due_at_ms = NULL, holder = 0
WHERE seq = ?;

-- name: may_delete
-- A shortcut past `core.decide.decide_deletion`, for its common case: the receipt holds the open lease, so the message goes, whatever
-- else is said of it. Of those of the messages: LeaseFacts of core/event.py, all that the journal tells of a delete. Loaded as facts and
-- decided one by one, a delete costs twice as much. The four places of OPEN_LEASE, seqs.
SELECT seq, message_id, holder & {DELIVERY_MASK}, due_at_ms, receive_count, body_bytes, message_type
FROM {ASKED} WHERE {OPEN_LEASE};

-- name: may_extend
-- The same past `decide_extension`: the open lease gets a later deadline within its twelve hours, or whichever its holder sets with the
-- end of its attempt. With it a whole request of ten changes takes a third fewer instructions. Four places as above; the new deadline,
-- the earliest receive from which an extension reaches that, the latest deadline that may be changed, seqs.
SELECT seq, message_id, holder & {DELIVERY_MASK}, ?5, receive_count, body_bytes, message_type
FROM {ASKED}
WHERE {OPEN_LEASE} AND received_at_ms >= ?6 AND due_at_ms <= ?7 AND delivery >= (holder & {DELIVERY_MASK});

-- name: move_deadlines
-- What `may_extend` has found: deadline, retention, seqs. A statement that changes and tells (RETURNING) costs more than the two, for one
-- message by half: SQLite collects what it tells in a table of its own.
UPDATE OR FAIL message SET due_at_ms = ?1,
       wake_at_ms = CASE WHEN ?1 > (seq >> {COUNTER_BITS}) + ?2 THEN (seq >> {COUNTER_BITS}) + ?2 ELSE ?1 END
WHERE seq IN (:seqs);

-- name: delete_messages
DELETE FROM message WHERE seq IN (:seqs);

-- name: redrive_message
-- A move task's move: queue, new seq, new id, sent, deduplication id, state, wake, due, seq.
UPDATE message SET queue_id = ?, seq = ?, message_id = ?, sent_wall_ms = ?, deduplication_id = ?, state = ?, wake_at_ms = ?,
       due_at_ms = ?, dead_letter_source = NULL, received_at_ms = NULL, delivery = 0, holder = 0, receive_count = 0,
       first_received_wall_ms = NULL
WHERE seq = ?;

-- name: change_content
-- A redrive that changes the message on its way: attributes, digest, body, its size, type, seq.
UPDATE message SET attributes = ?, body_md5 = ?, body = ?, body_bytes = ?, message_type = ? WHERE seq = ?;

-- ---- what becomes due

-- name: due
-- Hidden messages whose time has come.
SELECT {HELD_MESSAGE} {HIDDEN} AND wake_at_ms <= ?2 ORDER BY wake_at_ms, seq LIMIT ?3;

-- name: expired_alone
-- Visible messages that are past their retention: queue, the first seq that is not, limit.
SELECT {HELD_MESSAGE} {ALONE} AND seq < ?2 ORDER BY seq LIMIT ?3;

-- name: expired_grouped
SELECT {HELD_MESSAGE} {GROUPED} AND seq < ?2 ORDER BY seq LIMIT ?3;

-- name: expired_ranked
SELECT {HELD_MESSAGE} {RANKED} AND seq < ?2 ORDER BY seq LIMIT ?3;

-- name: next_wake
SELECT wake_at_ms {HIDDEN} ORDER BY wake_at_ms LIMIT 1;

-- name: set_wake
UPDATE message SET wake_at_ms = ? WHERE seq = ?;

-- name: oldest_visible
-- Queue; the seq up to which those without a group have leases that are not in their rows.
SELECT min(seq) FROM (
    SELECT seq FROM (SELECT seq {ALONE} AND seq > ?2 ORDER BY seq LIMIT 1)
    UNION ALL SELECT seq FROM (SELECT seq {GROUPED} ORDER BY seq LIMIT 1)
    UNION ALL SELECT seq FROM (SELECT seq {RANKED} ORDER BY seq LIMIT 1));

-- name: shorten_wakes
-- After a change of retention: hidden messages that pass it sooner than they would wake. One that it lets live longer wakes as
-- before, and is postponed then. Queue, retention.
UPDATE message SET wake_at_ms = (seq >> {COUNTER_BITS}) + ?2
WHERE queue_id = ?1 AND state <> {VISIBLE} AND wake_at_ms > (seq >> {COUNTER_BITS}) + ?2;

-- name: change_delay
-- After a change of a FIFO queue's delay: waiting messages, as if sent with it. Queue, delay, retention.
UPDATE message SET due_at_ms = (seq >> {COUNTER_BITS}) + ?2, wake_at_ms = (seq >> {COUNTER_BITS}) + min(?2, ?3)
WHERE queue_id = ?1 AND state <> {VISIBLE} AND +state = {DELAYED};

-- name: forget_deduplication
DELETE FROM deduplication WHERE (queue_id, scope, dedup_id) IN (
    SELECT queue_id, scope, dedup_id FROM deduplication INDEXED BY deduplication_until WHERE until_ms <= ? LIMIT ?);

-- name: forget_attempts
DELETE FROM attempt WHERE (queue_id, attempt_id) IN (
    SELECT queue_id, attempt_id FROM attempt INDEXED BY attempt_until WHERE until_ms <= ? LIMIT ?);

-- name: remembers
-- Whether there is anything that has to be forgotten some time.
SELECT EXISTS (SELECT 1 FROM deduplication) OR EXISTS (SELECT 1 FROM attempt) OR EXISTS (SELECT 1 FROM repeatable_send);

-- ---- sweeping a purged or deleted queue: what is visible is found as if it were past its retention

-- name: hidden_below
-- Hidden messages up to a seq: queue, the first seq that is to stay, limit.
SELECT {HELD_MESSAGE} {HIDDEN} AND seq < ?2 LIMIT ?3;

-- name: drop_deduplication
-- Of messages up to a seq: queue, the first seq that is to stay, limit.
DELETE FROM deduplication WHERE (queue_id, scope, dedup_id) IN (
    SELECT queue_id, scope, dedup_id FROM deduplication WHERE queue_id = ? AND seq < ? LIMIT ?);

-- name: drop_groups
-- Of a deleted queue, as what follows: queue, limit.
DELETE FROM lane WHERE (queue_id, group_name) IN (SELECT queue_id, group_name FROM lane WHERE queue_id = ? LIMIT ?);

-- name: drop_attempts
DELETE FROM attempt WHERE (queue_id, attempt_id) IN (SELECT queue_id, attempt_id FROM attempt WHERE queue_id = ? LIMIT ?);

-- name: drop_holds
DELETE FROM hold WHERE (queue_id, stream, batch, part) IN (
    SELECT queue_id, stream, batch, part FROM hold WHERE queue_id = ? LIMIT ?);

-- name: drop_streams
DELETE FROM stream WHERE (queue_id, name) IN (SELECT queue_id, name FROM stream WHERE queue_id = ? LIMIT ?);

-- name: has_groups
SELECT EXISTS (SELECT 1 FROM lane WHERE queue_id = ?);

-- ---- groups: a row of `lane` for each that has messages

-- name: join_group
-- One more message in a group; the group is new: turn and openness are the given ones. On a standard queue a dead letter may be
-- older than what its group has; on a FIFO queue keys only rise.
INSERT INTO lane (queue_id, group_name, turn, is_open, members, in_flight) VALUES (?, ?, ?, ?, 1, 0)
ON CONFLICT (queue_id, group_name) DO UPDATE SET members = members + 1, turn = min(turn, excluded.turn);

-- name: change_group
-- More or fewer messages, and more or fewer of them in flight: members, in flight, queue, group.
UPDATE lane SET members = members + ?, in_flight = in_flight + ? WHERE queue_id = ? AND group_name = ?;

-- name: drop_empty_group
DELETE FROM lane WHERE queue_id = ? AND group_name = ? AND members <= 0;

-- name: serve_group
-- The group was served: turn, queue, group.
UPDATE lane SET turn = ? WHERE queue_id = ? AND group_name = ?;

-- name: refresh_group
-- FIFO: a group is open while its first message is visible.
UPDATE lane SET is_open = coalesce((SELECT state = {VISIBLE} FROM message INDEXED BY grouped
    WHERE queue_id = ?1 AND group_name = ?2 ORDER BY seq LIMIT 1), 0)
WHERE queue_id = ?1 AND group_name = ?2 RETURNING is_open, members;

-- name: open_groups
SELECT group_name FROM lane INDEXED BY lane_open WHERE queue_id = ? AND is_open = 1 ORDER BY turn LIMIT ?;

-- name: loud_groups
-- Fair queues: the groups that may be noisy.
SELECT group_name, in_flight FROM lane INDEXED BY lane_noisy WHERE queue_id = ? AND in_flight >= {NOISY_COUNT_MIN};

-- ---- deduplication and attempts

-- name: find_duplicate
SELECT seq, message_id FROM deduplication WHERE queue_id = ? AND scope = ? AND dedup_id = ? AND until_ms > ?;

-- name: remember_duplicate
INSERT OR REPLACE INTO deduplication (queue_id, scope, dedup_id, until_ms, seq, message_id) VALUES (?, ?, ?, ?, ?, ?);

-- name: latest_sends
-- What a send may be a repetition of, newest first.
SELECT seq, sends FROM repeatable_send WHERE seq >= ? ORDER BY seq DESC;

-- name: remember_send
INSERT INTO repeatable_send (seq, sends) VALUES (?, ?);

-- name: forget_sends
DELETE FROM repeatable_send WHERE seq IN (SELECT seq FROM repeatable_send WHERE seq < ? ORDER BY seq LIMIT ?);

-- name: find_attempt
SELECT claims FROM attempt WHERE queue_id = ? AND attempt_id = ? AND until_ms > ?;

-- name: remember_attempt
INSERT OR REPLACE INTO attempt (queue_id, attempt_id, until_ms, claims) VALUES (?, ?, ?, ?);

-- ---- holds

-- name: find_stream
SELECT owner, closed FROM stream WHERE queue_id = ? AND name = ?;

-- name: open_stream
-- Queue, name, owner, now.
INSERT INTO stream (queue_id, name, owner, closed, used_at_ms) VALUES (?, ?, ?, -1, ?)
ON CONFLICT (queue_id, name) DO UPDATE SET owner = excluded.owner, used_at_ms = excluded.used_at_ms;

-- name: use_stream
-- Queue, name, now.
INSERT INTO stream (queue_id, name, closed, used_at_ms) VALUES (?, ?, -1, ?)
ON CONFLICT (queue_id, name) DO UPDATE SET used_at_ms = excluded.used_at_ms;

-- name: close_stream
UPDATE stream SET closed = max(closed, ?3) WHERE queue_id = ?1 AND name = ?2;

-- name: find_hold
SELECT lost, members FROM hold WHERE queue_id = ? AND stream = ? AND batch = ? AND part = ?;

-- name: next_hold
-- The stream's next hold after one, up to a batch: queue, stream, batch, part, last batch.
SELECT batch, part, lost, members FROM hold
WHERE queue_id = ?1 AND stream = ?2 AND (batch, part) > (?3, ?4) AND batch <= ?5 ORDER BY batch, part LIMIT 1;

-- name: write_hold
INSERT OR REPLACE INTO hold (queue_id, stream, batch, part, lost, members) VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_hold
DELETE FROM hold WHERE queue_id = ? AND stream = ? AND batch = ? AND part = ?;

-- name: group_seqs
-- FIFO: which messages the groups have, in whatever state: queue, a JSON list of groups, from, up to.
SELECT group_name, seq FROM message INDEXED BY grouped
WHERE queue_id = ?1 AND group_name IN (SELECT value FROM json_each(?2)) AND seq >= ?3 AND seq <= ?4 ORDER BY seq;

-- name: stale_stream
SELECT queue_id, name FROM stream INDEXED BY stream_used WHERE used_at_ms <= ? ORDER BY used_at_ms LIMIT 1;

-- name: drop_stream
DELETE FROM stream WHERE queue_id = ? AND name = ?;

-- name: drop_stream_holds
DELETE FROM hold WHERE queue_id = ? AND stream = ?;

-- ---- leases that are not in the rows of their messages (lease_log.py)

-- name: lease_log
SELECT packed FROM lease_log ORDER BY number;

-- name: add_to_lease_log
INSERT INTO lease_log (packed) VALUES (?);

-- name: clear_lease_log
DELETE FROM lease_log;

-- name: received_facts
-- LeaseFacts without the deadline, of messages as their receive left them: seqs.
SELECT seq, message_id, delivery + 1, receive_count + 1, body_bytes, message_type FROM {ASKED};

-- ---- the outbox

-- name: read_export
SELECT done, last, day FROM export WHERE id = 1;

-- name: add_to_outbox
INSERT INTO outbox (number, at_ms, packed) VALUES (?, ?, ?);

-- name: touch_mark
-- Changes nothing: for a transaction that has events to commit and no change.
UPDATE clock_mark SET last_seq = last_seq WHERE id = 1;

-- name: outbox_sizes
-- What a plan is made of: number, instant and size of the rows after one.
SELECT number, at_ms, length(packed) FROM outbox WHERE number > ? ORDER BY number LIMIT ?;

-- name: outbox_instant
SELECT at_ms FROM outbox WHERE number = ?;

-- name: outbox_rows
SELECT number, packed FROM outbox WHERE number > ? AND number <= ? ORDER BY number LIMIT ?;

-- name: write_plan
UPDATE export SET last = ?, day = ? WHERE id = 1;

-- name: finish_plan
UPDATE export SET done = last, last = NULL, day = NULL WHERE id = 1;

-- name: sweep_outbox
DELETE FROM outbox WHERE number IN (SELECT number FROM outbox WHERE number <= ? ORDER BY number LIMIT ?)
RETURNING length(packed);

-- ---- move tasks

-- name: insert_move
INSERT INTO move_task (id, source, destination, rate_per_s, status, moved, to_move, started_wall_ms, scan, caller)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: move_caller
SELECT caller FROM move_task WHERE id = ?;

-- part: MOVE_TASKS
SELECT id, source, destination, rate_per_s, status, moved, to_move, started_wall_ms, failure, scan FROM move_task

-- name: find_move
{MOVE_TASKS} WHERE id = ?;

-- name: list_moves
{MOVE_TASKS} WHERE source = ? ORDER BY number DESC LIMIT ?;

-- name: drop_moves
DELETE FROM move_task WHERE source = ?;

-- name: active_moves
{MOVE_TASKS} WHERE status IN ('RUNNING', 'CANCELLING') ORDER BY number;

-- name: active_move_of
SELECT id FROM move_task WHERE source = ? AND status IN ('RUNNING', 'CANCELLING');

-- name: advance_move
UPDATE move_task SET status = ?, moved = ?, failure = ?, scan = ? WHERE id = ?;

-- name: forget_moves
-- Only the latest tasks of a source are ever listed.
DELETE FROM move_task WHERE source = ?1 AND status NOT IN ('RUNNING', 'CANCELLING') AND number NOT IN (
    SELECT number FROM move_task WHERE source = ?1 ORDER BY number DESC LIMIT 10);

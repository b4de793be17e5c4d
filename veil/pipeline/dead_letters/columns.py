"""The columns of dead letters, written out: as they are read, as they are selected by, and as the table of groups has them."""

from __future__ import annotations

from typing import Final

ATTRIBUTES: Final = "map<string, struct<data_type: string, string_value: string, binary_value: binary>>"

# What a look at the queue gives. `seq` is the message's place in its queue, which names it together with its id.
PEEKED: Final = f"""
    queue             string not null,
    message_id        string not null,
    seq               bigint not null,
    state             string not null,
    sent_at           timestamp,
    receive_count     int,
    body_bytes        int not null,
    body              string,
    attributes        {ATTRIBUTES} not null,
    system_attributes map<string, string> not null
"""

# One dead letter: what `--where`, `--set-body` and `--set-attribute` may speak of.
LETTERS: Final = f"""
    queue             string not null,
    message_id        string not null,
    seq               bigint not null,
    state             string not null,
    source            string,
    message_type      string,
    error_type        string,
    error_text        string,
    fingerprint       string,
    group_id          string not null,
    handler           string,
    first_id          string not null,
    sent_at           timestamp,
    dead_since        timestamp,
    first_seen        timestamp,
    receive_count     int,
    redriven_before   boolean not null,
    leases            string,
    body              string,
    body_bytes        int not null,
    attributes        {ATTRIBUTES} not null,
    system_attributes map<string, string> not null
"""
# source           the queue it came from: as the server knows it, else as the consumer wrote it on the message.
# error_type …     what the consumer wrote; null where the server dead-lettered it for having been received too often.
# fingerprint      the error's text with numbers, ids, instants, addresses, quoted text and paths masked.
# group_id         twelve hexadecimal digits: the same for dead letters of one group, today and tomorrow.
# first_id         the id that the sender's records know: that of the message of which this one is a copy.
# dead_since       when it came here; null where neither the message nor the tables tell.
# first_seen       dead_since, else sent_at.
# receive_count    of the consumer's receives from the source, where it is known.
# leases           how its leases ended, such as "2 × superseded, 1 × dead_lettered"; null without the tables.

# The table `dead_letters`: a row for each group, the largest first.
GROUPS: Final = """
    analysed_at          timestamp not null,
    queue                string not null,
    source               string,
    message_type         string,
    error_type           string,
    fingerprint          string,
    group_id             string not null,
    messages             bigint not null,
    in_flight            bigint not null,
    redriven_before      bigint not null,
    first_seen           timestamp,
    last_seen            timestamp,
    receive_count_min    int,
    receive_count_median int,
    receive_count_max    int,
    body_bytes           bigint not null,
    leases               array<struct<messages: bigint, leases: string>> not null,
    examples             array<struct<message_id: string, first_seen: timestamp, error_text: string, body: string>> not null
"""
# leases           the commonest lease histories of the group, and how many of its messages had each.
# examples         the newest and the oldest, with the beginning of the body.

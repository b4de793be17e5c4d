"""Queues: created once, compared by what was given, changed by what is given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.kit import Desk, open_desk
from tests.stores.kit import ACCOUNT, REGION, a_key, redrive_to
from veil.core.clock import ManualClock
from veil.core.errors import (
    NameRefused,
    PolicyRefused,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueExists,
    QueueMissing,
    SettingNotForQueueType,
    SettingRefused,
    SettingUnknown,
    TagsRefused,
)
from veil.core.queue import Queue, QueueKey, RedriveAllow, RedrivePolicy
from veil.service.messages import purge
from veil.service.queues import (
    add_permission,
    change_settings,
    create_queue,
    delete_queue,
    find_queue,
    remove_permission,
    tag_queue,
    untag_queue,
)
from veil.service.service import Service, ServiceRules


async def create(service: Service, name: str, **given: Any) -> Queue:
    return await create_queue(service, a_key(name), given, {})


# ---- creating


async def test_a_created_queue_is_found_with_its_settings_and_tags(service: Service) -> None:
    created = await create_queue(service, a_key("q"), {"visibility_s": 60}, {"team": "x"})
    found = await find_queue(service, a_key("q"))
    assert found == created
    assert (found.settings.visibility_s, found.settings.retention_s) == (60, 345_600)
    assert found.tags == {"team": "x"}


async def test_a_queue_that_does_not_exist_is_missing(service: Service) -> None:
    with pytest.raises(QueueMissing):
        await find_queue(service, a_key("q"))


async def test_creating_again_gives_the_same_queue_when_what_is_given_agrees(service: Service) -> None:
    first = await create(service, "q", visibility_s=60, delay_s=5)
    assert await create(service, "q") == first
    assert await create(service, "q", delay_s=5) == first
    assert await create_queue(service, a_key("q"), {}, {"other": "tags"}) == first


async def test_creating_again_with_another_value_names_the_first_setting_that_differs(
    service: Service,
) -> None:
    await create(service, "q", visibility_s=60)
    with pytest.raises(QueueExists) as refusal:
        await create(service, "q", visibility_s=60, delay_s=5, retention_s=60)
    assert refusal.value.setting == "delay_s"


async def test_after_a_change_the_new_values_are_compared(service: Service) -> None:
    queue = await create(service, "q", visibility_s=60)
    await change_settings(service, queue, {"visibility_s": 90})
    await create(service, "q", visibility_s=90)
    with pytest.raises(QueueExists):
        await create(service, "q", visibility_s=60)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("", {}),
        ("a b", {}),
        ("x" * 81, {}),
        ("q.fifo", {}),
        ("q", {"fifo": True}),
        (".fifo", {"fifo": True}),
        ("x" * 76 + ".fifo", {"fifo": True}),
    ],
)
async def test_a_name_must_fit_the_type(service: Service, name: str, given: dict[str, Any]) -> None:
    with pytest.raises(NameRefused):
        await create(service, name, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"fifo": False},
        {"content_deduplication": True},
        {"deduplication_scope": "queue"},
        {"throughput_limit": "perQueue"},
    ],
)
async def test_fifo_settings_are_refused_on_standard_queues_whatever_their_value(
    service: Service, given: dict[str, Any]
) -> None:
    with pytest.raises(SettingNotForQueueType):
        await create(service, "q", **given)
    queue = await create(service, "r")
    with pytest.raises(SettingNotForQueueType):
        await change_settings(service, queue, given)


async def test_an_unknown_setting_and_one_out_of_range_are_refused_by_name(service: Service) -> None:
    with pytest.raises(SettingUnknown, match="colour"):
        await create(service, "q", colour="red")
    with pytest.raises(SettingRefused, match="visibility_s=43201"):
        await create(service, "q", visibility_s=43_201)
    assert await service.store.find_queue(a_key("q")) is None


async def test_the_type_of_a_queue_cannot_change(service: Service) -> None:
    fifo = await create(service, "q.fifo", fifo=True)
    standard = await create(service, "q")
    await change_settings(service, fifo, {"fifo": True})
    with pytest.raises(SettingRefused) as refusal:
        await change_settings(service, fifo, {"fifo": False})
    assert refusal.value.setting == "fifo"
    assert refusal.value.expected == "Modifying queue type is not supported."
    for value in (True, False):
        with pytest.raises(SettingNotForQueueType):
            await change_settings(service, standard, {"fifo": value})


async def test_a_change_leaves_what_was_not_given(service: Service) -> None:
    queue = await create(service, "q", visibility_s=60, delay_s=5)
    changed = await change_settings(service, queue, {"delay_s": 0})
    assert (changed.settings.visibility_s, changed.settings.delay_s) == (60, 0)


async def test_a_refused_change_changes_nothing(service: Service) -> None:
    queue = await create(service, "q", visibility_s=60)
    with pytest.raises(SettingRefused):
        await change_settings(service, queue, {"visibility_s": 5, "delay_s": 604_801})
    assert (await find_queue(service, a_key("q"))).settings == queue.settings


# ---- encryption settings


async def test_a_key_turns_managed_encryption_off_and_its_removal_leaves_it_off(service: Service) -> None:
    queue = await create(service, "q", kms_key="alias/k")
    assert queue.settings.managed_sse is False
    queue = await change_settings(service, queue, {"kms_key": ""})
    assert (queue.settings.kms_key, queue.settings.managed_sse) == (None, False)
    queue = await change_settings(service, queue, {"managed_sse": True})
    assert queue.settings.managed_sse is True


async def test_a_key_and_managed_encryption_do_not_go_together(service: Service) -> None:
    with pytest.raises(SettingRefused) as refusal:
        await create(service, "q", kms_key="alias/k", managed_sse=True)
    assert refusal.value.setting == "managed_sse"
    assert refusal.value.expected == "expected one kind of server-side encryption"
    queue = await create(service, "q", kms_key="alias/k", managed_sse=False)
    with pytest.raises(SettingRefused):
        await change_settings(service, queue, {"managed_sse": True})
    await change_settings(service, queue, {"managed_sse": True, "kms_key": None})


# ---- redrive policies


async def test_the_dead_letter_queue_must_exist(service: Service) -> None:
    with pytest.raises(SettingRefused, match="does not exist") as refusal:
        await create(service, "q", redrive=redrive_to("dead", 3))
    assert refusal.value.setting == "redrive"
    await create(service, "dead")
    await create(service, "q", redrive=redrive_to("dead", 3))


async def test_the_dead_letter_queue_must_be_of_the_same_type_region_and_account(service: Service) -> None:
    queue = await create(service, "q")
    await create(service, "dead.fifo", fifo=True)
    await create_queue(service, QueueKey("us-east-1", ACCOUNT, "dead"), {}, {})
    await create_queue(service, QueueKey(REGION, "111111111111", "dead"), {}, {})
    for target in (
        a_key("dead.fifo"),
        QueueKey("us-east-1", ACCOUNT, "dead"),
        QueueKey(REGION, "111111111111", "dead"),
    ):
        with pytest.raises(SettingRefused) as refusal:
            await change_settings(service, queue, {"redrive": RedrivePolicy(target, 3)})
        assert refusal.value.setting == "redrive"


async def test_a_queue_may_be_its_own_dead_letter_queue(service: Service) -> None:
    queue = await create(service, "q")
    changed = await change_settings(service, queue, {"redrive": redrive_to("q", 3)})
    assert changed.settings.redrive == redrive_to("q", 3)
    assert [source.name for source in await service.store.dead_letter_sources(changed.key)] == ["q"]
    closed = await create(service, "closed", redrive_allow=RedriveAllow("denyAll"))
    with pytest.raises(SettingRefused, match="redrive allow policy"):
        await change_settings(service, closed, {"redrive": redrive_to("closed", 3)})


async def test_the_dead_letter_queue_may_refuse_sources(service: Service) -> None:
    dead = await create(service, "dead", redrive_allow=RedriveAllow("byQueue", (a_key("friend"),)))
    await create(service, "friend", redrive=redrive_to("dead", 3))
    with pytest.raises(SettingRefused, match="redrive allow policy"):
        await create(service, "stranger", redrive=redrive_to("dead", 3))
    await change_settings(service, dead, {"redrive_allow": RedriveAllow("denyAll")})
    with pytest.raises(SettingRefused):
        await create(service, "late", redrive=redrive_to("dead", 3))


async def test_a_redrive_policy_can_be_taken_away(service: Service) -> None:
    await create(service, "dead")
    queue = await create(service, "q", redrive=redrive_to("dead", 3))
    assert (await change_settings(service, queue, {"redrive": None})).settings.redrive is None


async def test_creating_again_does_not_ask_whether_the_dead_letter_queue_still_exists(
    service: Service,
) -> None:
    dead = await create(service, "dead")
    queue = await create(service, "q", redrive=redrive_to("dead", 3))
    await delete_queue(service, dead)
    assert await create(service, "q", redrive=redrive_to("dead", 3)) == queue


# ---- policies and permissions


async def test_a_policy_is_checked_and_stored_in_its_normal_form(service: Service) -> None:
    statement = {"Effect": "Allow", "Principal": "*", "Action": "SQS:SendMessage", "Resource": a_key("q").arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)
    queue = await create(service, "q", policy=policy)
    assert queue.settings.policy is not None and "\n" not in queue.settings.policy
    assert await create(service, "q", policy=policy) == queue
    with pytest.raises(PolicyRefused):
        await change_settings(service, queue, {"policy": "{"})
    assert (await change_settings(service, queue, {"policy": ""})).settings.policy is None


async def test_permissions_come_and_go_by_label(service: Service) -> None:
    queue = await create(service, "q")
    queue = await add_permission(service, queue, "partner", ["111111111111"], ["SendMessage"])
    assert queue.settings.policy is not None
    (statement,) = json.loads(queue.settings.policy)["Statement"]
    assert (statement["Sid"], statement["Resource"]) == ("partner", queue.key.arn)
    with pytest.raises(PolicyRefused):
        await add_permission(service, queue, "partner", ["111111111111"], ["SendMessage"])
    assert (await remove_permission(service, queue, "partner")).settings.policy is None
    with pytest.raises(PolicyRefused):
        await remove_permission(service, queue, "partner")


# ---- tags


async def test_tags_are_added_overwritten_and_removed(service: Service) -> None:
    queue = await create(service, "q")
    await tag_queue(service, queue, {"a": "1", "b": ""})
    await tag_queue(service, queue, {"a": "2"})
    assert (await find_queue(service, queue.key)).tags == {"a": "2", "b": ""}
    assert (await untag_queue(service, queue, ["a", "missing"])).tags == {"b": ""}


async def test_too_many_tags_change_nothing(service: Service) -> None:
    queue = await create(service, "q")
    await tag_queue(service, queue, {str(number): "" for number in range(50)})
    with pytest.raises(TagsRefused):
        await tag_queue(service, queue, {"one more": ""})
    assert len((await find_queue(service, queue.key)).tags) == 50
    with pytest.raises(TagsRefused):
        await create_queue(service, a_key("r"), {}, {"": "no key"})


# ---- listing, deleting, purging


async def test_a_deleted_queue_is_gone_and_its_name_rests_for_a_minute(
    service: Service, clock: ManualClock
) -> None:
    desk = await open_desk(service, "q")
    await desk.send()
    await delete_queue(service, desk.queue)
    with pytest.raises(QueueMissing):
        await find_queue(service, a_key("q"))
    with pytest.raises(QueueMissing):
        await delete_queue(service, desk.queue)
    assert desk.tally("sent") == 0
    clock.advance(59_999)
    with pytest.raises(QueueDeletedRecently):
        await create(service, "q")
    clock.advance(1)
    await create(service, "q")


async def test_the_rests_can_be_turned_off(service: Service) -> None:
    service.rules = ServiceRules(rest_after_delete_ms=0, rest_after_purge_ms=0)
    queue = await create(service, "q")
    await purge(service, queue)
    await purge(service, queue)
    await delete_queue(service, queue)
    assert (await create(service, "q")).id != queue.id


async def test_a_purge_removes_visible_held_and_delayed_messages(orders: Desk, clock: ManualClock) -> None:
    await orders.send("held")
    await orders.receive_one()
    await orders.send("visible")
    await orders.send("delayed", delay_s=60)
    assert await orders.counts() == (1, 1, 1)
    await purge(orders.service, orders.queue)
    assert await orders.counts() == (0, 0, 0)
    with pytest.raises(PurgeInProgress):
        await purge(orders.service, orders.queue)
    clock.advance(seconds=60)
    await purge(orders.service, orders.queue)
    assert orders.tally("purged") == 2

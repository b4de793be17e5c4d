"""Queues of a real server as tests of the sink and of routing look at them."""

from __future__ import annotations

from typing import Any, NamedTuple

from veil.testing import VeilServer


class Got(NamedTuple):
    """A message as a plain client receives it."""

    message_id: str
    body: str
    attributes: dict[str, dict[str, Any]]
    system: dict[str, str]

    def text(self, name: str) -> str | None:
        """An attribute's text."""
        found = self.attributes.get(name)
        return None if found is None else str(found["StringValue"])


class Queues:
    """Makes queues and takes out all that is in them."""

    def __init__(self, server: VeilServer) -> None:
        self.server, self.sqs = server, server.client()

    def create(self, name: str, **attributes: str) -> str:
        """A queue; FIFO by its name."""
        given = {"FifoQueue": "true", **attributes} if name.endswith(".fifo") else attributes
        return str(self.sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"])

    def url(self, name: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=name)["QueueUrl"])

    def attributes(self, name: str) -> dict[str, str]:
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(name), AttributeNames=["All"])
        return dict(found["Attributes"])

    def count(self, name: str) -> int:
        """Messages in whatever state; exact."""
        found = self.attributes(name)
        kinds = ("", "NotVisible", "Delayed")
        return sum(int(found[f"ApproximateNumberOfMessages{kind}"]) for kind in kinds)

    def send(self, name: str, bodies: list[str], **entry: Any) -> list[str]:
        """Send these bodies; what else an entry has may depend on the body. Their ids."""
        ids = []
        for at in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body}
                | {key: value(body) if callable(value) else value for key, value in entry.items()}
                for number, body in enumerate(bodies[at : at + 10])
            ]
            answer = self.sqs.send_message_batch(QueueUrl=self.url(name), Entries=entries)
            assert "Failed" not in answer, answer["Failed"]
            ids += [
                each["MessageId"] for each in sorted(answer["Successful"], key=lambda each: int(each["Id"]))
            ]
        return ids

    def take_all(self, name: str) -> list[Got]:
        """Receive and delete until nothing is left."""
        url, found = self.url(name), list[Got]()
        while True:
            messages = self.sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])
            if not messages:
                return found
            for each in messages:
                found.append(
                    Got(
                        each["MessageId"], each["Body"], each.get("MessageAttributes", {}), each["Attributes"]
                    )
                )
            entries = [{"Id": str(at), "ReceiptHandle": m["ReceiptHandle"]} for at, m in enumerate(messages)]
            self.sqs.delete_message_batch(QueueUrl=url, Entries=entries)

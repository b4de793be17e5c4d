"""A worker that keeps its message invisible for as long as the work takes, and no longer if it dies.

    pip install boto3
    python examples/worker.py QUEUE [--until-empty]

The visibility timeout is short, so a crashed worker's message is back soon; while the work goes on a thread extends it at
a third of the timeout. Stop extending before deleting, or the last extension may meet a message that is gone.
"""

# ruff: noqa: T201
import os
import sys
import threading

import boto3

VISIBILITY_S = 6

sqs = boto3.client(
    "sqs",
    endpoint_url=os.environ.get("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:9324"),
    region_name=os.environ.get("AWS_REGION", "us-east-1"),
    aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID", "veil"),
    aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY", "veil"),
)


def handle(body: str) -> None:
    """Your work; it may be done twice, so it must bear that."""
    print("handled", body, flush=True)


def extend(url: str, receipt: str, done: threading.Event) -> None:
    while not done.wait(VISIBILITY_S / 3):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=VISIBILITY_S)


def main() -> None:
    url = sqs.get_queue_url(QueueName=sys.argv[1])["QueueUrl"]
    until_empty = "--until-empty" in sys.argv
    while True:
        answer = sqs.receive_message(
            QueueUrl=url, VisibilityTimeout=VISIBILITY_S, WaitTimeSeconds=0 if until_empty else 20
        )
        if until_empty and "Messages" not in answer:
            return
        for message in answer.get("Messages", []):
            receipt, done = message["ReceiptHandle"], threading.Event()
            extending = threading.Thread(target=extend, args=(url, receipt, done), daemon=True)
            extending.start()
            try:
                handle(message["Body"])
            finally:
                done.set()
                extending.join()
            # Not reached when the work failed: the message comes back, and goes to the dead letters in the end.
            sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)


if __name__ == "__main__":
    main()

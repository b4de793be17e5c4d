"""The life of one message with boto3 (pip install boto3). Start a server first: veil serve"""

# ruff: noqa: S106, T201

import os

import boto3

sqs = boto3.client(
    "sqs",
    endpoint_url=os.environ.get("AWS_ENDPOINT_URL_SQS", "http://127.0.0.1:9324"),
    region_name="us-east-1",
    aws_access_key_id="veil",
    aws_secret_access_key="veil",
)
url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
sent = sqs.send_message(QueueUrl=url, MessageBody='{"order": 1}')
print("sent    ", sent["MessageId"])

message = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"][0]
print("received", message["MessageId"], message["Body"])

assert "Messages" not in sqs.receive_message(QueueUrl=url)
print("a second receive finds nothing: the message is invisible for 30 seconds")

sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
print("deleted ")

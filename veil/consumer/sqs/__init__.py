"""The queue service over HTTP: Veil, Amazon SQS, or anything else that speaks AWS JSON 1.0."""

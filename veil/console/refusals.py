"""What the console refuses, each with the status and the sentence that the page shows."""

from __future__ import annotations


class Refused(Exception):
    """The request is not answered with what it asked for; the text is for people."""

    status = 400

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class NotFound(Refused):
    """There is no such page, queue or message."""

    status = 404


class Forbidden(Refused):
    """The visitor's role, token or address does not permit it."""

    status = 403


class TooMany(Refused):
    """Asked too often, or too many at once."""

    status = 429

    def __init__(self, sentence: str, retry_after_s: int = 1) -> None:
        super().__init__(sentence)
        self.retry_after_s = retry_after_s


class FormRefused(Refused):
    """What was filled in cannot be used: a sentence for each field, by its name."""

    status = 422

    def __init__(self, problems: dict[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {problem}" for field, problem in problems.items()))
        self.problems = problems

"""Receipts: nobody else can write one, and each has one spelling."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veil.core.errors import ReceiptInvalid
from veil.core.receipt import DELIVERY_BITS, ROTATION_MAX, Receipt, ReceiptBook

BOOK = ReceiptBook(b"k" * 32)
OTHER = ReceiptBook(
    b"k" * 32
)  # of another process, or after a restart: it has written none of the receipts that it reads
ALPHABET = string.ascii_letters + string.digits + "-_"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))
def test_what_is_written_is_read_back(queue_id, seq, delivery):
    text = BOOK.write(queue_id, seq, delivery)

    assert len(text) == 44
    assert set(text) <= set(ALPHABET)
    assert BOOK.read(text, queue_id) == OTHER.read(text, queue_id) == Receipt(queue_id, seq, delivery, text)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(1, ROTATION_MAX),
)
def test_a_rotated_receipt_is_another_text_of_the_same_alphabet(queue_id, seq, delivery, rotation):
    holder = delivery | rotation << DELIVERY_BITS
    text = BOOK.write(queue_id, seq, holder)

    assert len(text) == 48
    assert set(text) <= set(ALPHABET)
    assert BOOK.read(text, queue_id) == OTHER.read(text, queue_id) == Receipt(queue_id, seq, holder, text)
    assert OTHER.read(text, queue_id).delivery == delivery


def test_a_rotated_receipt_cannot_be_cut_down_to_the_first_nor_drawn_out_from_it():
    for text in (BOOK.write(1, 2, 3 | 4 << DELIVERY_BITS)[:44], BOOK.write(1, 2, 3) + "AAAA"):
        with pytest.raises(ReceiptInvalid):
            BOOK.read(text, 1)


@pytest.mark.parametrize("reader", [BOOK, OTHER])
def test_a_receipt_of_another_queue_is_refused(reader):
    text, of_queue_2 = BOOK.write(1, 2, 3), BOOK.write(2, 2, 3)
    for texts in ([text], [of_queue_2, text]):
        with pytest.raises(ReceiptInvalid):
            reader.read_all(texts, 2)


def test_only_the_latest_receipts_that_were_written_are_kept(monkeypatch):
    monkeypatch.setattr("veil.core.receipt._KEPT_MAX", 3)
    book = ReceiptBook(b"k" * 32)
    texts = [book.write(1, seq, 1) for seq in range(10)]
    assert len(book._fresh) + len(book._older) <= 6
    assert [receipt.seq for receipt in book.read_all(texts, 1)] == [*range(10)]


def test_a_receipt_under_another_key_is_refused():
    with pytest.raises(ReceiptInvalid):
        ReceiptBook(b"x" * 32).read(BOOK.write(1, 2, 3), 1)


def test_a_receipt_with_any_one_character_changed_is_refused():
    text = BOOK.write(1, 2, 3)
    for place, char in enumerate(text):
        other = ALPHABET[(ALPHABET.index(char) + 1) % len(ALPHABET)]
        with pytest.raises(ReceiptInvalid):
            OTHER.read(text[:place] + other + text[place + 1 :], 1)


@pytest.mark.parametrize(
    "text", ["", "x", "A" * 43, "A" * 44, "A" * 45, "=" * 44, "ä" * 44, "\0" * 44, " " * 44, "A" * 43 + "="]
)
def test_what_is_no_receipt_is_refused_with_its_text(text):
    with pytest.raises(ReceiptInvalid) as refusal:
        OTHER.read(text, 1)
    assert refusal.value.receipt == text


@given(st.text(max_size=60))
def test_no_text_at_all_does_worse_than_be_refused(text):
    with pytest.raises(ReceiptInvalid):
        OTHER.read(text, 1)


def test_the_other_spelling_of_base64_is_refused():
    text = next(text for seq in range(100) if set(text := BOOK.write(1, seq, 3)) & set("-_"))
    with pytest.raises(ReceiptInvalid):
        OTHER.read(text.replace("-", "+").replace("_", "/"), 1)


def test_stray_characters_that_decoders_skip_make_no_second_spelling():
    text = BOOK.write(1, 2, 3)
    for other in (
        text[:-1] + "\n",
        "\n" + text[1:],
        text.replace("-", "+").replace("_", "/") + "\n",
        text[:-1] + "=",
        text + "\n",
    ):
        with pytest.raises(ReceiptInvalid):
            OTHER.read(other, 1)


def _read_one_by_one(texts: list[str]) -> list[Receipt] | None:
    try:
        return [OTHER.read(text, 1) for text in texts]
    except ReceiptInvalid:
        return None


_OURS = st.integers(0, 2**20).map(lambda seq: BOOK.write(1, seq, 3))
_SPECIAL = st.sampled_from(
    (
        BOOK.write(1, 2, 3 | 4 << DELIVERY_BITS),  # rotated
        BOOK.write(2, 2, 3),  # of another queue
        ReceiptBook(b"x" * 32).write(1, 2, 3),
        BOOK.write(1, 2, 3)[:-1] + "=",
        "A" * 44,
        "é" * 44,
        "",
    )
)


@pytest.mark.parametrize("reader", [BOOK, OTHER])
@given(st.lists(_OURS, max_size=12), st.lists(_SPECIAL, max_size=2), st.randoms())
def test_receipts_read_together_are_those_read_one_by_one(reader, ours, special, random):
    texts = [*ours, *special]
    random.shuffle(texts)
    try:
        assert reader.read_all(texts, 1) == _read_one_by_one(texts)
    except ReceiptInvalid:
        assert _read_one_by_one(texts) is None


def test_what_is_a_receipt_only_together_with_its_neighbour_is_refused():
    first, second = BOOK.write(1, 2, 3), BOOK.write(1, 3, 3)
    for texts in ([first + second[0], second[1:]], [first[:-4], first[-4:] + second], [first + second, ""]):
        with pytest.raises(ReceiptInvalid):
            OTHER.read_all(texts, 1)

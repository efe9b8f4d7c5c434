"""API keys: their text, what is kept of them, and their end."""

from __future__ import annotations

from penstock.security.api_key import ApiKey, digest_of, new_key, parse_key

KEY_ID, SECRET, TEXT = new_key(b"12345678", bytes(range(32)))


def test_a_key_is_found_by_its_id_and_proved_by_its_secret() -> None:
    assert parse_key(TEXT) == (KEY_ID, SECRET)
    key = ApiKey(key_id=KEY_ID, digest=digest_of(SECRET), principal="User:alice")
    assert key.fits(SECRET)
    assert not key.fits(SECRET[:-1] + "A")
    assert not key.fits("")


def test_only_the_whole_text_is_a_key() -> None:
    for text in ("", "psk_", TEXT[:-1], TEXT + "A", TEXT.upper(), TEXT + "\n", f" {TEXT}"):
        assert parse_key(text) is None, text


def test_what_is_kept_does_not_show_the_secret() -> None:
    key = ApiKey(key_id=KEY_ID, digest=digest_of(SECRET), principal="User:alice")
    assert SECRET.encode() not in key.digest
    assert repr(key) == f"ApiKey({KEY_ID}, User:alice)"


def test_a_key_ends_when_it_expires() -> None:
    key = ApiKey(key_id=KEY_ID, digest=bytes(32), principal="User:alice", expires_ms=100)
    assert [key.is_over(now_ms) for now_ms in (99, 100, 101)] == [False, True, True]
    assert not ApiKey(key_id=KEY_ID, digest=bytes(32), principal="User:alice").is_over(1 << 60)

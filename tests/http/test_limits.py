"""Limits: how often a client may ask."""

import pytest

from gradproof.http import limits
from gradproof.http.answers import Refused
from gradproof.http.limits import RateLimit


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def allowed(limit, client, tries):
    passed = 0
    for _ in range(tries):
        try:
            limit.check(client)
            passed += 1
        except Refused as refused:
            assert refused.status == 429
    return passed


def test_a_burst_and_then_the_rate():
    clock = Clock()
    limit = RateLimit(10, 5, clock)
    assert allowed(limit, "a", 20) == 5
    clock.now += 0.35
    assert allowed(limit, "a", 20) == 3
    clock.now += 100
    assert allowed(limit, "a", 20) == 5


def test_one_client_does_not_use_up_anothers():
    limit = RateLimit(10, 5, Clock())
    assert allowed(limit, "a", 100) == 5 and allowed(limit, "b", 100) == 5


def test_what_is_remembered_is_bounded(monkeypatch):
    """Else a client that changes its name with every request fills the memory."""
    monkeypatch.setattr(limits, "MOST_CLIENTS", 100)
    limit = RateLimit(1, 1, Clock())
    for i in range(1000):
        limit.check(str(i))
    assert len(limit._buckets) == 100


def test_a_clock_that_stands_still_gives_nothing():
    limit = RateLimit(1000, 2, Clock())
    assert allowed(limit, "a", 50) == 2
    with pytest.raises(Refused, match="1000 requests a second"):
        limit.check("a")

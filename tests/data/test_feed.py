import numpy as np
import pytest
import torch

from gradproof.data.encoders import Encoder
from gradproof.data.feed import Feed
from gradproof.data.synthetic import synthetic


@pytest.fixture(scope="module")
def made():
    return synthetic(600, 0, 2)


def feed_of(made, members=3, rate=0.0, batch=32):
    feed = Feed(made.rows, np.arange(50, 500), Encoder(made.schema), batch, 7, members)
    feed.rate = rate
    return feed


def same(a, b):
    return torch.equal(a[0], b[0]) and all(map(torch.equal, a[1], b[1]))


def test_encoded_once_or_batch_by_batch_is_the_same(made):
    """Resuming must not depend on how much memory there is."""
    once, each = feed_of(made, rate=0.25), feed_of(made, rate=0.25)
    once.encode_all()
    assert all(same(once(s, m), each(s, m)) for s in (0, 1, 20) for m in range(3))


def test_members_read_the_same_rows_in_orders_of_their_own(made):
    feed = feed_of(made)
    epoch = [np.concatenate([batches[s] for s in range(14)]) for batches in feed.batches]
    assert all(set(order) <= set(range(50, 500)) for order in epoch)
    assert not np.array_equal(epoch[0], epoch[1])
    one = Feed(made.rows, np.arange(50, 500), Encoder(made.schema), 32, 7)
    from gradproof.data.batches import Batches

    assert np.array_equal(one.batches[0][3], Batches(np.arange(50, 500), 32, 7)[3])  # one model: as ever


def test_dropout(made):
    """A quarter of the inputs is zero, the others are larger by a third; every step and member has zeros of its own,
    and the encoded rows stay as they are."""
    feed = feed_of(made, rate=0.25, batch=256)
    feed.encode_all()
    whole, dropped = feed.taken(feed.batches[0][0])[0], feed(0)[0]
    used = whole != 0
    assert torch.allclose(dropped[used & (dropped != 0)], whole[used & (dropped != 0)] * 4 / 3)
    assert abs(float((dropped[used] == 0).float().mean()) - 0.25) < 0.02
    assert torch.equal(feed(0)[0], dropped) and torch.equal(feed.taken(feed.batches[0][0])[0], whole)
    assert not torch.equal(feed(0)[0] == 0, feed(1)[0] == 0)

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.batches import Batches

# The order of every run that was ever trained from seed 0.
GOLDEN = "6a13f3f081888cf7"


def stream(batches, steps):
    return np.concatenate([batches[step] for step in range(steps)])


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3), st.data())
def test_any_step_from_anywhere(rows, batch, seed, data):
    """A run that goes on at step s sees what it would have seen, in any order of asking, also backwards."""
    index_R = np.arange(100, 100 + rows)
    right = [Batches(index_R, batch, seed)[step] for step in range(12)]
    batches = Batches(index_R, batch, seed)
    for step in data.draw(st.permutations(range(12))):
        np.testing.assert_array_equal(batches[step], right[step])
        assert len(right[step]) == min(rows, batch)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_every_epoch_has_every_row_once(rows, batch, seed):
    """Also where an epoch ends within a batch; a row that is dropped there would never be learned."""
    index_R = np.arange(rows) * 3 + 7
    batches = Batches(index_R, batch, seed)
    seen = stream(batches, 4 * -(-rows // batches.batch))
    for epoch in range(len(seen) // rows):
        assert sorted(seen[epoch * rows : (epoch + 1) * rows]) == index_R.tolist()


def test_batch_larger_than_the_rows():
    """It is all rows, each once: a mean over the batch is then the mean over the epoch."""
    batches = Batches(np.arange(5), 64, 0)
    assert batches.batch == 5
    assert sorted(batches[0]) == sorted(batches[7]) == list(range(5))


def test_epochs_and_seeds_differ():
    """The same order every epoch would make the same batches every epoch."""
    batches = Batches(np.arange(100), 100, 0)
    assert (batches[0] != batches[1]).any() and (batches[0] != np.arange(100)).any()
    assert (batches[0] != Batches(np.arange(100), 100, 1)[0]).any()


def test_order_does_not_depend_on_the_batch():
    """It is one stream; a run with another batch size reads the same rows in the same order."""
    np.testing.assert_array_equal(stream(Batches(np.arange(20), 5, 3), 12), stream(Batches(np.arange(20), 12, 3), 5))


def test_golden():
    """Any change of the stream would break the resuming of every run that was written before."""
    order = stream(Batches(np.arange(50), 8, 0), 20).astype("<i8")
    assert hashlib.sha256(order.tobytes()).hexdigest()[:16] == GOLDEN


def test_rows_are_those_given():
    """A mask's positions, not 0 … R − 1."""
    assert sorted(Batches(np.array([4, 8, 15]), 3, 0)[0]) == [4, 8, 15]


@pytest.mark.parametrize("step", [10**6, 10**9])
def test_far_steps(step):
    """Only the epochs that the batch needs are drawn."""
    assert len(Batches(np.arange(1000), 64, 0)[step]) == 64

import numpy as np
import torch

from gradproof.streams import philox, seeded


def test_a_key_is_a_stream():
    """Every part of the key counts; a stream that depends on what was drawn before would differ the second time."""
    keys = [(0,), (1,), (0, "a"), (0, "b"), ("a", 0), (0, "a", 1), (-1, "a"), (2**70, "a")]
    draws = [torch.randn(4, generator=seeded(*key)).tolist() for key in keys]
    raws = [philox(*key).random_raw(4).tolist() for key in keys]
    for values in (draws, raws):
        assert len({tuple(value) for value in values}) == len(keys)
    assert [torch.randn(4, generator=seeded(*key)).tolist() for key in keys] == draws
    assert [philox(*key).random_raw(4).tolist() for key in keys] == raws


def test_the_same_bits_on_every_machine():
    """Golden values: every model ever trained started from these. Python's own hash would change with the process."""
    assert philox(0, "router.weight").random_raw(2).tolist() == [11358417894861117858, 7098333412872106195]
    assert [hex(v) for v in philox(7, "batches", 3).random_raw(1)] == ["0xd3b9489bfcca2cc4"]


def test_the_global_generators_are_left_alone():
    """A test, or a user, who seeded them gets what they asked for."""
    torch.manual_seed(0)
    np.random.seed(0)
    right = torch.randn(2), np.random.rand(2)
    torch.manual_seed(0)
    np.random.seed(0)
    torch.randn(3, generator=seeded(1, "x"))
    philox(1, "x").random_raw(3)
    assert torch.equal(torch.randn(2), right[0]) and np.array_equal(np.random.rand(2), right[1])

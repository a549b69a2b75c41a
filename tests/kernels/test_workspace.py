"""Buffers that are used again: what a kernel takes under one name, and what it never gets."""

import pytest
import torch

from gradproof.kernels.workspace import Workspace

LIKE = torch.empty(0)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_the_same_buffer_for_the_same_name_and_shape():
    """A step that allocates in the steady state would get another object, or another address, each time."""
    workspace = Workspace()
    first = workspace.take("h", (3, 4), LIKE)
    first.fill_(7)
    again = workspace.take("h", (3, 4), torch.empty(9))
    assert again is first and (again == 7).all() and workspace.bytes() == 48


def test_names_do_not_share():
    """Two arrays of one step under one buffer would overwrite each other."""
    workspace = Workspace()
    one, other = workspace.take("act", (5,), LIKE), workspace.take("dh", (5,), LIKE)
    one.fill_(1)
    other.fill_(2)
    assert address(one) != address(other) and (one == 1).all()


@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 2, 3), (5,), (0,), (0, 4), ()])
def test_a_smaller_shape_is_the_front_of_the_same_buffer(shape):
    """Routing changes the row counts at every step: each must be served from what is there, contiguous."""
    workspace = Workspace()
    whole = workspace.take("x", (12,), LIKE)
    whole.copy_(torch.arange(12.0))
    part = workspace.take("x", shape, LIKE)
    assert part.shape == shape and part.is_contiguous() and address(part) == address(whole)
    assert torch.equal(part.flatten(), whole[: part.numel()]) and part.storage_offset() == 0
    assert workspace.bytes() == 48


def test_growth_gives_every_shape_the_new_buffer():
    """A view of the buffer that was let go would keep it alive, and two shapes of one name would no longer be the same
    memory: a forward would write what its backward does not read."""
    workspace = Workspace()
    small = workspace.take("x", (2, 2), LIKE)
    large = workspace.take("x", (3, 5), LIKE)
    again = workspace.take("x", (2, 2), LIKE)
    assert again is not small and address(again) == address(large) != address(small)
    assert workspace.bytes() == 60
    assert workspace.take("x", (3, 5), LIKE) is large  # and asking for less let nothing go


def test_growth_of_one_name_leaves_the_others():
    """An array in use must stay where it is while another one of the same step grows."""
    workspace = Workspace()
    kept = workspace.take("act", (4,), LIKE)
    kept.fill_(3)
    workspace.take("dh", (1,), LIKE)
    workspace.take("dh", (100,), LIKE)
    assert workspace.take("act", (4,), LIKE) is kept and (kept == 3).all()


def test_names_that_begin_alike_are_others():
    """`x.1` is no part of `x`, nor `x` of `x.1`."""
    workspace = Workspace()
    kept = workspace.take("x.1", (4,), LIKE)
    workspace.take("x", (1,), LIKE)
    workspace.take("x", (9,), LIKE)
    assert workspace.take("x.1", (4,), LIKE) is kept and workspace.bytes() == 16 + 36


def test_formats_have_buffers_of_their_own():
    """bf16 rows in what fp32 left there would be read as other numbers; growth of the one keeps the other's."""
    workspace = Workspace()
    formats = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
    first = [workspace.take("x", (6,), torch.empty(0, dtype=dtype)) for dtype in formats]
    assert [buffer.dtype for buffer in first] == list(formats) and len({address(buffer) for buffer in first}) == 4
    assert workspace.bytes() == 6 * (4 + 2 + 2 + 8)
    for value, buffer in enumerate(first):
        buffer.fill_(value)
    workspace.take("x", (10,), torch.empty(0, dtype=torch.bfloat16))
    held = [workspace.take("x", (6,), torch.empty(0, dtype=dtype)) for dtype in formats]
    assert [address(a) == address(b) for a, b in zip(held, first, strict=True)] == [True, False, True, True]
    assert all((buffer == value).all() for value, buffer in enumerate(held) if value != 1)
    assert workspace.bytes() == 6 * (4 + 2 + 8) + 10 * 2


def test_devices_have_buffers_of_their_own():
    """`meta` stands for a second device where there is none."""
    workspace = Workspace()
    here, there = workspace.take("x", (6,), LIKE), workspace.take("x", (6,), torch.empty(0, device="meta"))
    assert (here.device.type, there.device.type) == ("cpu", "meta")
    assert address(workspace.take("x", (6,), LIKE)) == address(here) and workspace.bytes() == 48


def test_two_workspaces_share_nothing():
    """Two models in one process would write into each other's tapes."""
    one, other = Workspace(), Workspace()
    assert address(one.take("x", (3,), LIKE)) != address(other.take("x", (3,), LIKE))


def test_bytes_are_what_is_held():
    """Not the sum over all shapes ever asked for: memory is compared with that of peers by it."""
    workspace = Workspace()
    assert workspace.bytes() == 0
    for rows in (3, 9, 5, 9, 2):
        workspace.take("x", (rows, 2), LIKE)
    workspace.take("y", (1,), LIKE.double())
    assert workspace.bytes() == 9 * 2 * 4 + 8

"""A checkpoint does not know how many ranks wrote it: saved on any layout, resumed on any other."""

import pytest
from ranks.layouts import resume_from, save_after, save_on_full_disk
from ranks.test_parity import alone, off

HALF = 23
TWO = ("data2", "data2 sharded", "experts2", "experts2 sharded")
FOUR = ("data4", "data2 experts2", "data2 experts2 sharded")


def run(pools, function, layout, *args):
    if layout == "one":
        return [function(layout, *args)]
    return pools["four" if layout in FOUR else "two"].run(function, layout, *args)


def resumes(pools, folder, layouts):
    """The rest of the uninterrupted trajectory, to 1e-10, on each of the layouts."""
    figures, ended = alone()
    for layout in layouts:
        held = set()
        for own_figures, own in run(pools, resume_from, layout, folder, HALF):
            assert off(own_figures, figures[HALF:]) < 1e-10, layout
            for name, tensor in own.items():
                assert off(tensor, ended[name]) < 1e-10, (layout, name)
            held |= set(own)
        assert held == set(ended)


@pytest.mark.parametrize("saved", ("one", *TWO))
def test_two_ranks_or_one(two_ranks, tmp_path, saved):
    """A moment left with its rank, or a piece in the wrong place, would break this."""
    pools = {"two": two_ranks}
    files = run(pools, save_after, saved, tmp_path, HALF)[0]
    assert ("step-1.safetensors" in files) == (saved not in ("one", "data2"))
    resumes(pools, tmp_path, ("one", *TWO))


@pytest.mark.slow
@pytest.mark.parametrize("saved", ("one", *TWO, *FOUR))
def test_every_layout(two_ranks, four_ranks, tmp_path, saved):
    pools = {"two": two_ranks, "four": four_ranks}
    run(pools, save_after, saved, tmp_path, HALF)
    resumes(pools, tmp_path, ("one", *TWO, *FOUR))


def test_all_of_it_or_none(two_ranks, tmp_path):
    """A disk that is full for one rank leaves no checkpoint, and every rank hears which one it was."""
    answers = two_ranks.run(save_on_full_disk, "data2 sharded", tmp_path, 3)
    assert all("rank 1" in answer and "No space left" in answer for answer in answers)
    assert list(tmp_path.iterdir()) == []

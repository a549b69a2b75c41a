"""A rank whose parameters drifted is named, on every rank."""

import pytest
from ranks.layouts import drift


@pytest.mark.parametrize("layout", ("data2", "data2 sharded"))
def test_the_rank_whose_parameters_were_written_to(two_ranks, layout):
    """The gathered parameters of a sharded optimizer hide half of the places, not this one."""
    answers = two_ranks.run(drift, layout, 1)
    assert len(set(answers)) == 1
    if layout == "data2":
        assert answers[0].startswith("rank 1 drifted: experts.0.linear.1.weight was changed outside"), answers


def test_two_that_differ_are_both_named(two_ranks):
    answers = two_ranks.run(drift, "data2", 1, False)
    assert all(answer.startswith("ranks 0 and 1 drifted apart: experts.0.linear.1.weight") for answer in answers)


def test_none_drifted(two_ranks):
    assert two_ranks.run(drift, "data2", -1) == ["", ""]


@pytest.mark.slow
def test_the_odd_one_of_four(four_ranks):
    answers = four_ranks.run(drift, "data4", 2, False)
    assert all(answer.startswith("rank 2 drifted: experts.0.linear.1.weight differs") for answer in answers)


@pytest.mark.slow
def test_along_data_where_experts_are_spread(four_ranks):
    """Rank 3 holds experts 2 and 3, and so does rank 1."""
    answers = four_ranks.run(drift, "data2 experts2", 3)
    assert all(answer.startswith("rank 3 drifted: experts.2.linear.1.weight") for answer in answers), answers

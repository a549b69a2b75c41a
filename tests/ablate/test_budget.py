"""Matched budgets: no training, no allocation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradproof.ablate.budget import MATCHES, solve
from gradproof.ablate.families import DEFAULT, Family, family
from gradproof.data.synthetic import schema
from gradproof.models.dense import DenseConfig
from gradproof.params import ParamSpace


@pytest.mark.parametrize("name", DEFAULT)
@pytest.mark.parametrize("match", MATCHES)
@settings(max_examples=15)
@given(exponent=st.floats(5, 8.845))
def test_every_family_meets_every_budget(name, match, exponent):
    """Between 100,000 and 700 million within 1%, whatever is held equal."""
    solved = solve(family(name), round(10**exponent), match, 96, 20, schema().patches)
    assert abs(solved.off) <= 0.01 and not solved.note()


@pytest.mark.parametrize("name", DEFAULT)
@pytest.mark.parametrize("match", MATCHES)
def test_all_members_share_the_budget(name, match):
    """Eight members have together what one model has, counted on the parameters that they would lay out."""
    solved = solve(family(name), 400_000, match, 96, 20, schema().patches, members=8, classes=12)
    assert (solved.config.members, solved.config.classes) == (8, 12)
    assert abs(solved.off) <= 0.01 and not solved.note()
    assert ParamSpace(solved.config.spec(), device="meta").count == pytest.approx(solved.total, rel=1e-3)
    alone = solve(family(name), 50_000, match, 96, 20, schema().patches)
    assert solved.shape == alone.shape and solved.total == 8 * alone.total


@pytest.mark.parametrize("name", DEFAULT)
def test_the_ends_of_the_range(name):
    for budget in (100_000, 700_000_000):
        assert abs(solve(family(name), budget, "total", 96, 20, schema().patches).off) <= 0.01


@pytest.mark.parametrize("name", DEFAULT)
def test_counts_are_those_of_the_model(name):
    """The parameters that a real model of this configuration would lay out, none of them allocated."""
    solved = solve(family(name), 300_000, "total", 37, 5, (20, 10, 7))
    assert ParamSpace(solved.config.spec(), device="meta").count == solved.total


def test_a_dense_model_is_the_yardstick():
    """All of its parameters are active; the others come to its flops."""
    dense, moe = (solve(family(name), 500_000, "flops", 96, 20) for name in ("dense", "moe"))
    assert dense.total == dense.active and dense.config == DenseConfig.matching(500_000)
    assert moe.flops == pytest.approx(dense.flops, rel=0.01) and moe.total > 1.5 * dense.total


def test_active_and_flops_by_hand():
    """2 inputs, 3 outputs, 4 experts of one hidden layer of 5: a row meets the router and 2 experts."""
    options = dict(experts=4, k=2, hidden=5, depth=0)
    from gradproof.models.moe import MoEConfig

    config = MoEConfig(2, 3, **options)
    router, expert = 2 * 4 + 4, (2 * 5 + 5) + 2 * 5 + (5 * 3 + 3)
    assert config.param_count() == router + 4 * expert and config.active_count() == router + 2 * expert
    assert config.flops_per_row() == 6 * (2 * 4 + 2 * (2 * 5 + 5 * 3))
    assert DenseConfig(2, 3, 5, 7, 1).flops_per_row() == 6 * (2 * 5 + 5 * 7 + 7 * 5 + 5 * 3)


def test_below_the_range_it_is_said():
    """Six hundred parameters: one hidden unit more is several percent."""
    solved = solve(family("moe"), 600, "total", 96, 20)
    if abs(solved.off) > 0.01:
        assert "closest possible to 600" in solved.note() and "moe" in solved.note()
    worst = max(
        (solve(family("moe"), budget, "total", 96, 20) for budget in range(600, 3000, 50)), key=lambda s: abs(s.off)
    )
    assert abs(worst.off) > 0.01 and "closest possible" in worst.note()


@pytest.mark.parametrize(
    ("name", "budget", "sentence"),
    [
        ("moe", 100, "has as few as 100 parameters"),
        ("dense", 20, "has as few as 20 parameters"),
        ("moe", 0, "budget = 0"),
    ],
)
def test_impossible_budgets(name, budget, sentence):
    with pytest.raises(ValueError, match=sentence):
        solve(family(name), budget, "total", 96, 20)


def test_options_are_kept():
    """Eight experts of which three work, at the same total."""
    solved = solve(family("moe", {"experts": 8, "k": 3}), 400_000, "total", 96, 20)
    assert (solved.config.experts, solved.config.k, solved.config.balance) == (8, 3, 0.1)
    assert abs(solved.off) <= 0.01


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("moe", Family("moe", "moe")),
        ("moe-padic", Family("moe-padic", "moe", "softmax", "padic")),
        ("moe-sheaf-padic", Family("moe-sheaf-padic", "moe", "sheaf", "padic")),
        ("dense-padic", Family("dense-padic", "dense", "softmax", "padic")),
    ],
)
def test_names_of_families(name, right):
    assert family(name) == right


@pytest.mark.parametrize("name", ["transformer", "moe-hash", "moe-sheaf-sheaf", "", "moe-padic-onehot"])
def test_unknown_families(name):
    with pytest.raises(ValueError, match="there is no family"):
        family(name)


def test_a_dense_model_has_no_router():
    with pytest.raises(ValueError, match="has no router"):
        family("dense-sheaf")


def test_labels():
    assert [family(name).label for name in DEFAULT] == ["MoE", "MoE, sheaf router, p-adic inputs", "Dense"]

import pytest
import torch

from gradproof.models.dense import DenseConfig
from gradproof.models.ensemble import Ensemble, EnsembleConfig
from gradproof.models.moe import MoE, MoEConfig

MEMBER = MoEConfig(inputs=5, outputs=3, experts=4, hidden=6, depth=1)


def ensemble(**options):
    return Ensemble(EnsembleConfig(MEMBER, **{**dict(members=3, classes=3), **options}), dtype=torch.float64)


def test_one_buffer_and_members_that_differ():
    """A member is a view of the ensemble's buffer, and no two begin alike: equal members would learn alike."""
    model = ensemble()
    assert model.params.count == 3 * MEMBER.param_count() == model.config.param_count()
    assert model.members[1].params.flat_P.data_ptr() == model.params["members.1.router.weight"].data_ptr()
    first, second = (member.params["router.weight"] for member in model.members[:2])
    assert (first != second).all()


def test_probabilities_are_the_mean_of_the_members():
    model, x_TI = ensemble(), torch.randn(9, 5, dtype=torch.float64)
    logits_TO = model.forward(x_TI)[0].logits_TO
    p_MTO = torch.stack([torch.softmax(member.forward(x_TI)[0].logits_TO, -1) for member in model.members])
    torch.testing.assert_close(torch.softmax(logits_TO, -1), p_MTO.mean(0), rtol=1e-12, atol=0)


def test_one_member_decides_as_it_does_alone():
    model, x_TI = ensemble(members=1), torch.randn(4, 5, dtype=torch.float64)
    alone = MoE(MEMBER, dtype=torch.float64)
    alone.params.flat_P.copy_(model.params.flat_P)
    mine, own = (torch.softmax(m.forward(x_TI)[0].logits_TO, -1) for m in (model, alone))
    torch.testing.assert_close(mine, own, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("options", "words"), [(dict(members=0), "members"), (dict(classes=4), "classes")])
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        EnsembleConfig(DenseConfig(5, 3), **options)

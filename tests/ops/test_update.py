import math

import pytest
import torch

from gradproof.ops import adamw, update

P = 128


def ended(normal, spoilt=None, loss=0.5, scale=1.0, **options):
    """The update from a state after several steps, and that state."""
    p_P, g_P, m_P, v_P = normal(3, *[(P,)] * 4)
    if spoilt is not None:
        g_P[77] = spoilt
    before = (p_P, g_P, 0.1 * m_P, 0.01 * v_P.square(), torch.tensor([True, False]))
    scalars = [torch.tensor(value, dtype=torch.float64) for value in (6.0, 2.0, 0.01, scale, loss)]
    return update.forward(*before, *scalars, **options)[0], before


@pytest.mark.parametrize("clip", [None, 0.3, 1e6])
@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_it_is_adamw_by_the_clipped_gradient(normal, agree, clip, scale):
    """Fails on clipping before unscaling, a count that lags by one, or a norm computed after clipping."""
    after, (p_P, g_P, m_P, v_P, decayed_B) = ended(normal, scale=scale, clip=clip)
    norm = math.sqrt(sum(float(g) ** 2 for g in g_P)) / scale
    factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    count, rate = torch.tensor([7.0, 0.01], dtype=torch.float64)
    right, _ = adamw.forward(p_P, g_P / scale * factor, m_P, v_P, decayed_B, count, rate)
    for one, other in zip(after[:3], right, strict=True):
        agree(one, other, 1e-13)
    assert float(after.norm) == pytest.approx(norm, rel=1e-14)
    assert (float(after.count), float(after.skips), float(after.skipped)) == (7, 2, 0)


@pytest.mark.parametrize("spoilt, loss", [(math.nan, 0.5), (math.inf, 0.5), (-math.inf, 0.5), (None, math.nan)])
def test_what_is_not_finite_moves_nothing(normal, spoilt, loss):
    """Fails if weight decay, a moment or the count still changes."""
    after, (p_P, _, m_P, v_P, _) = ended(normal, spoilt, loss, clip=1.0)
    assert all(torch.equal(a, b) for a, b in zip(after[:3], (p_P, m_P, v_P), strict=True))
    assert (float(after.count), float(after.skips), float(after.skipped)) == (6, 3, 1)

import pytest
import torch

from gradproof.gate.network import GateConfig
from gradproof.models.transformer import Transformer, TransformerConfig
from gradproof.ops import reading
from gradproof.ops.embedding import PADDING
from gradproof.ops.reading import Reader
from gradproof.params import offsets

CONFIGS = {
    "usual": dict(vocabulary=11, width=12, heads=3, encoder_layers=2, feedforward=20, context=9),
    "one head, four times as wide inside": dict(vocabulary=5, width=8, heads=1, encoder_layers=1, context=6),
    "no layer": dict(vocabulary=5, width=4, heads=2, encoder_layers=0, context=6),
}


def model(name):
    return Transformer(TransformerConfig(**CONFIGS[name], mode="classify"), seed=3, dtype=torch.float64)


def tokens(config):
    token_BS = torch.randint(config.vocabulary, (5, config.context), generator=torch.Generator().manual_seed(1))
    token_BS[1, 3:], token_BS[2, :2], token_BS[3] = PADDING, PADDING, PADDING
    token_BS[4, 1::2] = PADDING
    return token_BS


@pytest.mark.parametrize("name", CONFIGS)
def test_it_says_what_the_model_says(name, agree):
    """The parts are proven one by one. Fails on a missing layer, the norm of another sublayer, padding that counts, or
    positions that skip padding.
    """
    own = model(name)
    x_BS = tokens(own.config)
    output, _ = own.apply(own.params, x_BS)
    y_BO, _ = reading.forward(x_BS, own.params.flat_P, own._reader)
    agree(y_BO, output.logits_TO, 1e-12)
    assert len(set(y_BO[:, 0].tolist())) == 5


@pytest.mark.parametrize("name", CONFIGS)
def test_its_parameters_stand_where_the_models_do(name):
    own = model(name)
    assert own._reader.offsets[0] == own.params.offsets
    assert {entry.name: entry.shape for entry in own._reader.spec} == own.params.shapes


def test_the_gates_own_come_first_in_it():
    c = GateConfig(encoder_layers=3)
    reader = Reader(c.vocabulary, c.width, c.heads, c.encoder_layers, c.inner, c.context)
    starts, _ = offsets(c.spec())
    assert {name: starts[name] for name in reader.offsets[0]} == reader.offsets[0]
    assert all(start >= reader.offsets[1] for name, start in starts.items() if name not in reader.offsets[0])


def test_nothing_behind_or_between_the_parameters_is_read():
    own = Reader(7, 6, 2, 1, 5, 8)
    given = reading._draw(dict(B=2, S=5), torch.Generator().manual_seed(0), dict(reader=own))
    assert given["theta"].isnan().any()
    assert reading.forward(given["token"], given["theta"], own)[0].isfinite().all()

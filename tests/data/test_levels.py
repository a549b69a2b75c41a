import numpy as np
import torch

from gradproof.data.encoders import Encoder
from gradproof.data.levels import with_levels
from gradproof.data.pieces import with_knots
from gradproof.data.rows import Rows
from gradproof.data.schema import Number, Schema


def table(value_R):
    R = len(value_R)
    rows = Rows(np.zeros((R, 0), np.int32), value_R[:, None], np.arange(R) % 2, np.zeros((R, 0), np.float32))
    schema = Schema("y", ("a", "b"), numbers=(Number("v", float(np.nanmean(value_R)), float(np.nanstd(value_R))),))
    return with_knots(schema, rows, np.ones(R, bool)), rows


def levels_of(value_R, most=256):
    schema, rows = table(value_R)
    return with_levels(schema, rows, np.ones(len(value_R), bool), most).numbers[0].levels


def test_a_column_of_codes_has_an_input_for_each():
    """One hundred codes of 60 rows each: more than 48 pieces tell apart."""
    codes = np.repeat(np.arange(100.0) * 7, 60)
    assert levels_of(codes) == tuple(np.arange(100.0) * 7)
    assert levels_of(codes, most=99) == () and levels_of(codes, most=0) == ()


def test_numbers_and_what_pieces_tell_apart_have_none():
    assert levels_of(np.random.default_rng(0).normal(size=5000)) == ()
    assert levels_of(np.repeat(np.arange(10.0), 100)) == ()
    assert levels_of(np.repeat(np.arange(200.0), 12)) == ()  # twelve rows each are too few


def test_rare_values_are_no_levels():
    value_R = np.concatenate([np.repeat(np.arange(60.0), 50), [1000.0, 1001.0]])
    assert levels_of(value_R) == tuple(np.arange(60.0))


def test_encoding():
    """The input of the level is 1; an unknown and a missing value have none, and all other inputs stay as they were."""
    value_R = np.repeat(np.arange(100.0), 60)
    plain, rows = table(value_R)
    schema = with_levels(plain, rows, np.ones(len(value_R), bool), 256)
    tried = Rows(*(array[:3] for array in rows))._replace(numbers_RN=np.array([[42.0], [42.5], [np.nan]]))
    x_TI = Encoder(schema).inputs(tried)
    assert x_TI.shape[1] == schema.inputs == plain.inputs + 100
    assert torch.equal(x_TI[:, : plain.inputs], Encoder(plain).inputs(tried))
    hot_TL = x_TI[:, plain.inputs :]
    assert hot_TL[0].nonzero().tolist() == [[42]] and not hot_TL[1:].any()
    assert Schema.from_dict(schema.to_dict()) == schema

import json

from hypothesis import given
from hypothesis import strategies as st

from gradproof.data.schema import Category, Metric, Number, Schema

NAME = st.text(max_size=5)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
CATEGORY = st.builds(Category, NAME, st.lists(NAME, max_size=4, unique=True).map(tuple), st.booleans(), st.booleans())
KNOTS = st.lists(FLOAT, max_size=3).map(tuple)
NUMBER = st.builds(
    Number, NAME, FLOAT, FLOAT, st.booleans(), st.booleans(), KNOTS, st.integers(0, 2), st.integers(0, 9)
)
SCHEMA = st.builds(
    Schema,
    NAME,
    st.lists(NAME, max_size=4).map(tuple),
    st.lists(CATEGORY, max_size=3).map(tuple),
    st.lists(NUMBER, max_size=3).map(tuple),
    st.lists(st.builds(Metric, NAME, FLOAT, FLOAT), max_size=3).map(tuple),
    st.dictionaries(NAME, NAME, max_size=3),
)


@given(SCHEMA)
def test_json_round_trip(schema):
    """Prediction reads by the saved schema: a bit of a mean or a slot that is lost there changes every answer."""
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@given(CATEGORY)
def test_slots(category):
    """One slot a value, then other, then missing: no two share one, none is left over."""
    slots = category.slots()
    assert [slots[value] for value in category.values] == list(range(len(category.values)))
    assert (None in slots) == category.missing
    taken = [*slots.values(), *([category.unseen] if category.other else [])]
    assert sorted(taken) == list(range(category.width))
    assert category.other or category.unseen == -1


def test_the_text_none_is_a_value():
    """A known value of this spelling must not take the slot of what is missing."""
    assert Category("c", ("None", "a"), missing=True).slots() == {"None": 0, "a": 1, None: 2}


def test_sizes():
    """What the model is built for: one-hot, numbers, pieces and flags; classes and metrics."""
    schema = Schema(
        "y",
        ("a", "b", "c"),
        (Category("p", ("u", "v"), other=True, missing=True), Category("q", ("u", "v"))),
        (Number("m", 0.0, 1.0, missing=True), Number("n", 0.0, 1.0, knots=(0.0, 1.0, 5.0))),
        (Metric("s"),),
    )
    assert (schema.inputs, schema.outputs) == (4 + 2 + 2 + 2 + 1, 4)
    assert (Schema("y", ("a",)).inputs, Schema("y", ("a",)).outputs) == (0, 1)


@given(SCHEMA)
def test_patches_are_all_inputs(schema):
    """In their order: a patch that begins a column too late would read parts of two."""
    assert schema.patches == schema.blocks and sum(schema.blocks) == schema.inputs


def test_many_columns_share_patches():
    """Neighbours, in order, and the numbers by themselves: never more than 32."""
    names = tuple(Category(f"c{i}", ("u", "v"), other=i % 2 == 0) for i in range(70))
    schema = Schema("y", ("a", "b"), names, (Number("n", 0.0, 1.0), Number("m", 0.0, 1.0, missing=True)))
    assert len(schema.patches) == 25 and schema.patches[:2] == (8, 7) and schema.patches[-2:] == (2, 3)
    assert sum(schema.patches) == schema.inputs

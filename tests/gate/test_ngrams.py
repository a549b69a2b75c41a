import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradproof.gate.ngrams import BOUNDS, LONGEST, NUMBERS, ngrams


@given(st.text(max_size=60))
def test_as_many_as_there_are_pieces(text):
    """One number for each distinct piece of each length, but for collisions, which are rare."""
    plain = "".join("0" if c.isascii() and c.isdigit() else c for c in text).encode()
    pieces = {plain[i : i + n] for n in range(1, LONGEST + 1) for i in range(len(plain) - n + 1)}
    gram_G = ngrams(text)
    assert len(pieces) * 0.97 - 1 <= len(gram_G) <= len(pieces)
    assert (np.diff(gram_G) > 0).all() and (len(gram_G) == 0 or (gram_G[0] >= 0 and gram_G[-1] < NUMBERS))


def test_each_length_has_its_own_numbers():
    """`ab` and `abc` never share a number; the longest have half of them."""
    assert BOUNDS == (0, NUMBERS // 16, NUMBERS // 8, NUMBERS // 4, NUMBERS // 2, NUMBERS)
    counts, _ = np.histogram(ngrams("the quick brown fox"), BOUNDS)
    assert counts.tolist() == [len({"the quick brown fox"[i : i + n] for i in range(20 - n)}) for n in range(1, 6)]


def test_digits_are_alike_and_case_is_not():
    assert np.array_equal(ngrams("sleep 5"), ngrams("sleep 7")) and not np.array_equal(ngrams("ls -r"), ngrams("ls -R"))
    assert len(ngrams("")) == 0

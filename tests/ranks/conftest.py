"""Ranks are started once for all tests of a worker: that takes seconds."""

import pytest

from gradproof.ranks.pool import Pool


@pytest.fixture(scope="session")
def two_ranks():
    with Pool(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def four_ranks():
    with Pool(4) as pool:
        yield pool

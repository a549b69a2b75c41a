"""200 seeds of right modules: no false alarm."""

import called_modules
import misused_modules
import modules
import pytest
import torch

import gradproof

RIGHT = {
    **modules.RIGHT,
    **{f"{name}, as it trains": case for name, case in called_modules.RIGHT.items()},
    **{f"{name}, called otherwise": case for name, case in misused_modules.RIGHT.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_right_module_is_refuted(first):
    """Every module several times, each time other values and other directions."""
    names = list(RIGHT)
    for seed in range(first, first + 20):
        for name in names[seed % 4 :: 4]:
            torch.manual_seed(seed)
            report = gradproof.verify(*RIGHT[name](), seed=seed)
            assert report.status != "refuted", f"{name}, seed {seed}: {report.summary}"

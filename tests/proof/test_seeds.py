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


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_no_right_module_is_refuted_in_bf16(first):
    """Where rounding hides a factor in one run, it is averaged over others: no false alarm there either."""
    names = [name for name in RIGHT if "raw pointers" not in name]  # a kernel for float32 alone
    for seed in range(first, first + 8):
        for name in names[seed % 4 :: 4]:
            torch.manual_seed(seed)
            how = {"dtype": "bf16"} if seed // 4 % 2 else {"autocast": "bf16"}
            report = gradproof.verify(*RIGHT[name](), seed=seed, quick=True, **how)
            assert report.status != "refuted", f"{name}, seed {seed}, {how}: {report.summary}"

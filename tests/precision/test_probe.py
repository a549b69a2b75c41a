import pytest

from gradproof.precision import probe


def fresh(monkeypatch, product):
    monkeypatch.delenv(probe.VARIABLE, raising=False)
    monkeypatch.setattr(probe, "PRODUCT", product)
    probe.check_bf16_on_cpu.cache_clear()


def test_a_process_that_dies_names_the_variable(monkeypatch):
    """Without the probe, the whole run would die of SIGILL without a message."""
    fresh(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    with pytest.raises(ValueError, match="set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before starting"):
        probe.check_bf16_on_cpu()


def test_a_product_that_runs_is_fine(monkeypatch):
    fresh(monkeypatch, "pass")
    probe.check_bf16_on_cpu()


def test_who_has_chosen_is_not_probed(monkeypatch):
    """The probe takes seconds; setting the variable skips it."""
    fresh(monkeypatch, "raise SystemExit(1)")
    monkeypatch.setenv(probe.VARIABLE, "AVX2")
    probe.check_bf16_on_cpu()

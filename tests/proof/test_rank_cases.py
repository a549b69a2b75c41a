"""`verify --ranks`: wrong distributed steps are refuted by name, right ones proven, and what ends a rank is told."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gradproof
from gradproof.cli import app
from gradproof.proof.rank_judge import verify_ranks
from gradproof.proof.rank_names import part_of
from gradproof.proof.rank_rows import RankTurn, RowShares, output_part, taken
from gradproof.proof.rank_stages import hung
from gradproof.proof.rank_watch import Whereabouts
from gradproof.proof.runner import CannotRun
from gradproof.ranks.pool import Pool

CASES = Path(__file__).with_name("rank_cases.py")
NET = {"a.weight", "a.bias", "norm.weight", "norm.bias", "b.weight", "b.bias"}
DRAWN = {"a.weight", "a.bias", "b.weight", "b.bias"}  # those whose initial values differ from rank to rank
LOSS = {f"net.{name}" for name in NET}
NORMS = {f"blocks.{i}.norms.{j}.{kind}" for i in range(2) for j in range(2) for kind in ("weight", "bias")}

# By mutant: the tensors that must be refuted, and what must be said of one of them.
MUTANTS = {
    "forgotten_for_one": ({"norm.weight"}, "each rank has the gradient of its own rows alone in step 1"),
    "forgotten_for_all": (NET, "is not reduced"),
    "averaged_twice": (NET, "is 2.0 times too small in step 1"),
    "summed_not_averaged": (NET, "is 2.0 times too large in step 1"),
    "averaged_not_summed": (NET, "is 2.0 times too small in step 1"),
    "gradient_of_rank_0": (NET, "is that of rank 0's rows alone, on every rank"),
    "not_waited_for": (NET, "in step 1"),
    "bucket_without_tail": ({"b.bias"}, "in step 1"),
    "wrong_group": (NET, "is not reduced"),
    "sync_left_off": (NET, "is not reduced"),
    "no_broadcast": (DRAWN, "after wrap its value on rank 1 is off by"),
    "one_not_broadcast": ({"b.bias"}, "after wrap its value on rank 1 is off by"),
    "updated_on_rank_0_only": ({"norm.weight", "norm.bias"}, "its update is zero on rank 1 in step 1"),
    "drifting": ({"norm.weight"}, "its value on rank 1 changes by 1e-06 of its size in step 1"),
    "loss_by_local_rows": ({*LOSS, "x"}, "in step 1"),
    "column_input_not_reduced": ({"norm.weight", "norm.bias", "x"}, "in step 1"),
    "row_output_reduced_twice": ({"up.weight", "up.bias"}, "is 2.0 times too large in step 1"),
    "parallel_norm_not_reduced": ({"norm.weight", "norm.bias"}, "in step 1"),
    "stale_shards": ({"0.weight"}, "in step 2"),
    "fsdp_norm_left_out": (NORMS, "is not reduced"),
    "fsdp_summed": ({"embedding.weight", "head.bias", *NORMS}, "is 2.0 times too large in step 1"),
}
# Whose other tensors are right, and must not be blamed.
ALONE = {"forgotten_for_one", "bucket_without_tail", "one_not_broadcast", "updated_on_rank_0_only", "drifting"}
ALONE |= {"parallel_norm_not_reduced", "fsdp_norm_left_out", "column_input_not_reduced", "no_broadcast"}

RIGHT = ["hooks", "hooks_that_sum", "bucket", "accumulating", "synced_norm", "sharded", "experts", "tensor_parallel"]
RIGHT += ["handmade_tensor_parallel", "sequence_parallel", "loss_by_global_rows", "loss_of_even_shares"]
RIGHT += ["ddp_in_wrappers", "dropout_off"]


ZERO = {"synced_norm": ["a.bias"]}  # which the norm takes away
SLOW = {"averaged_not_summed", "wrong_group", "fsdp_summed", "row_output_reduced_twice", "not_waited_for"}
SLOW |= {"hooks_that_sum", "loss_of_even_shares", "ddp_in_wrappers", "dropout_off", "experts", "bucket"}


def slowly(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


def judged(name, ranks=2, **options):
    return verify_ranks(f"{CASES}:{name}", ranks, **options)


def refuted(report):
    """The notes of what was refuted, by name."""
    (subject,) = report.subjects
    return {j.name: j.note for j in (*subject.parameters, *subject.inputs) if j.status == "refuted"}


@pytest.mark.parametrize("name", slowly(MUTANTS))
def test_a_wrong_step_is_refuted_by_name(two_ranks, name):
    wrong, words = MUTANTS[name]
    report = judged(name, pool=two_ranks, quick=True)
    found = refuted(report)
    assert report.status == "refuted" and not report
    assert found.keys() == wrong if name in ALONE else found.keys() >= wrong
    assert any(words in note for note in found.values()), found
    assert all(n in report.summary for n in sorted(wrong)[:1] if len(wrong) < 6)


@pytest.mark.parametrize("name", slowly(RIGHT))
def test_its_right_twin_is_proven(two_ranks, name):
    report = judged(name, pool=two_ranks, skip=("dtype",))
    (subject,) = report.subjects
    assert report, report.summary
    assert subject.ranks == 2 and subject.coverage.judged == subject.coverage.total > 4
    assert all(j.error < j.bound < 1e-9 for j in (*subject.parameters, *subject.inputs) if "zero here" not in j.note)
    assert [j.name for j in subject.parameters if j.resolution is None] == ZERO.get(name, [])
    assert {check.name: check.status for check in subject.checks}["accumulation"] == "proven"


@pytest.mark.parametrize("name", ["ddp_transformer", "fsdp_transformer"])
def test_a_transformer_is_proven(two_ranks, name):
    """In float64 and float32, and with gradients that accumulate."""
    report = judged(name, pool=two_ranks)
    (subject,) = report.subjects
    assert report, report.summary
    assert len(subject.parameters) == 27 and {j.status for j in subject.parameters} == {"proven"}
    checks = {check.name: check.status for check in subject.checks}
    assert checks.items() >= {"dtype": "proven", "accumulation": "proven"}.items()
    assert ("no_sync" in checks) == (name == "ddp_transformer")


def test_gradients_reduced_before_accumulation_ends(two_ranks):
    """Right while every step has one backward."""
    assert judged("reduced_too_early", pool=two_ranks, quick=True)
    report = judged("reduced_too_early", pool=two_ranks, skip=("dtype",))
    assert refuted(report).keys() == NET
    assert all("accumulate over two micro-batches" in note for note in refuted(report).values())
    assert [c.name for c in report.subjects[0].checks if c.status == "refuted"] == ["accumulation"]


def test_wrong_in_the_dtype_that_trains(two_ranks):
    assert judged("wrong_in_float32", pool=two_ranks, skip=("dtype",))
    report = judged("wrong_in_float32", pool=two_ranks, skip=("accumulation", "no_sync"))
    assert refuted(report).keys() == NET
    assert all(note.startswith("right in float64, wrong in float32") for note in refuted(report).values())


def test_batch_statistics_of_each_rank(two_ranks):
    """Outputs, running statistics and gradients are not those of all rows."""
    report = judged("unsynced_norm", pool=two_ranks, quick=True)
    assert refuted(report).keys() >= {"a.weight", "norm.weight"}
    assert {c.name for c in report.subjects[0].checks if c.status == "refuted"} == {"output", "buffer"}


def test_a_buffer_that_differs(two_ranks):
    """No gradient depends on it."""
    report = judged("unsynced_buffer", pool=two_ranks, quick=True)
    assert report.status == "refuted" and not refuted(report)
    assert "seen of rank 0 is off by" in report.summary


def test_uneven_shares_are_pointed_out(two_ranks):
    report = judged("loss_by_local_rows", pool=two_ranks, quick=True)
    assert any("weighted by how many" in note for note in report.subjects[0].notes)


def test_narrow_numbers_on_the_way_are_no_fault(two_ranks):
    """Nor are they a proof."""
    report = judged("bf16_on_the_way", pool=two_ranks, quick=True)
    assert report.status == "inconclusive"
    assert "epsilon of 7.8e-03" in report.summary


def test_random_draws_are_named(two_ranks):
    report = judged("dropout", pool=two_ranks)
    assert report.status == "inconclusive" and "draws random numbers" in report.summary


@pytest.mark.slow
def test_other_rows_and_seeds(two_ranks):
    for seed in (1, 2):
        assert judged("ddp", pool=two_ranks, quick=True, seed=seed)
        assert refuted(judged("forgotten_for_one", pool=two_ranks, quick=True, seed=seed)).keys() == {"norm.weight"}


# What ends a trial.


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, words",
    [
        ("too_few_rows", "1 rows cannot be cut into 2 shares"),
        ("plain_case", "must return a RankCase"),
        ("raises_on_rank_1", "rank 1 raised ValueError in the case and its wrap: no room here"),
        ("communicates_itself", "rank 0: the module communicates by itself"),
        ("heads_apart", "rank 0 holds a part of up.weight, but not 4 to 8 along axis 0"),
    ],
)
def test_what_cannot_be_judged(name, words):
    with pytest.raises(CannotRun) as said:
        judged(name)
    assert words in str(said.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, status, words",
    [
        ("experts_unused", "refuted", "rank 0 (in backward) waits in forward and backward of step 1, which rank 1 has"),
        ("raises_later", "refuted", "rank 1 raised RuntimeError in forward and backward of step 2"),
        (
            "collective_left_out",
            "inconclusive",
            "rank 0 ended with exit code -6 in forward and backward of step 1; gloo",
        ),
        ("dies", "inconclusive", "rank 1 ended with exit code 9 in forward and backward of step 1"),
        ("computes", "inconclusive", "is still computing in forward and backward of step 1 after 20 s"),
        ("flat_pieces", "inconclusive", "is no contiguous part of (10, 6)"),
    ],
)
def test_a_rank_that_hangs_or_dies(name, status, words):
    """What waits for its time-out waits as long as a busy machine may take for a stage."""
    with Pool(2) as pool:
        report = judged(name, pool=pool, timeout=20.0)
        assert report.status == status
        assert words in report.summary
        assert judged("ddp", pool=pool, quick=True), "the ranks start anew"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp_transformer", "data_and_tensor_parallel", "hsdp"])
def test_four_ranks(four_ranks, name):
    assert judged(name, 4, pool=four_ranks)


@pytest.mark.slow
def test_wrong_on_four_ranks_alone(four_ranks):
    """Averaged over pairs; replicas of shards that begin with different values."""
    assert refuted(judged("pairs", 4, pool=four_ranks)).keys() == NET
    assert refuted(judged("hsdp_unseeded", 4, pool=four_ranks)).keys() == DRAWN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "compiled", "handmade_tensor_parallel", "synced_norm", "experts"])
def test_right_in_narrow_dtypes(two_ranks, name):
    assert judged(name, pool=two_ranks)
    assert judged(name, pool=two_ranks, autocast=torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forgotten_for_all", "summed_not_averaged"])
def test_wrong_where_float64_was_skipped_over(two_ranks, name):
    """bf16 rounds by percents; a factor of 2 is seen all the same."""
    assert refuted(judged(name, pool=two_ranks, dtype=torch.bfloat16)).keys() == NET


# The command.


@pytest.mark.slow
def test_the_command(tmp_path):
    record, page = tmp_path / "record.json", tmp_path / "page.html"
    asked = ["verify", f"{CASES}:forgotten_for_one", "--ranks", "2", "--json", str(record), "--html", str(page)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1, result.output
    assert "norm.weight" in page.read_text()
    (subject,) = json.loads(record.read_text())["subjects"]
    assert subject["ranks"] == 2 and subject["status"] == "refuted"
    assert [p["name"] for p in subject["parameters"] if p["status"] == "refuted"] == ["norm.weight"]
    result = CliRunner().invoke(app, ["verify", f"{CASES}:ddp_transformer", "--ranks", "2", "--quick"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--ranks", "2"], "need a CASE"),
        ([f"{CASES}:ddp"], "--ranks 2"),
        ([f"{CASES}:ddp", "--ranks", "1"], "give at least two ranks"),
        ([f"{CASES}:ddp", "--ranks", "2", "--record", "r.json"], "--ranks runs on the CPU and cannot be combined"),
        ([f"{CASES}:ddp", "--ranks", "2", "--skip", "eval"], "with --ranks there is no check 'eval'"),
    ],
)
def test_misuse_is_one_sentence(arguments, words):
    result = CliRunner().invoke(app, ["verify", *arguments])
    assert result.exit_code == 2 and words in result.stderr


def test_python_says_what_to_type():
    case = gradproof.RankCase(torch.nn.Linear(2, 2), (torch.zeros(2, 2),), lambda module: module)
    with pytest.raises(CannotRun, match=r"gradproof verify file\.py:case --ranks 2"):
        gradproof.verify(case)
    assert case._replace(reduction="max").fault() == "reduction is 'max'; use mean or sum"
    assert case._replace(wrap=None).fault() == "wrap must be a function of the module, not a NoneType"


# Which rows and which parts.


def test_shares_are_contiguous_and_cover_all_rows():
    for rows, shares, micros in ((7, 2, 1), (7, 2, 2), (12, 5, 2), (4, 4, 1)):
        parts = [RowShares(rows, shares, own) for own in range(shares)]
        taken_rows = []
        for micro in range(micros):
            slices = parts[0].of(RankTurn(0, micros), micro)
            batch = taken(torch.arange(rows), rows, slices)
            for own, part in enumerate(parts):
                mine = list(range(rows))[slices[own]]
                assert batch[part.place(RankTurn(0, micros), micro)].tolist() == mine
            taken_rows += batch.tolist()
        assert sorted(taken_rows) == list(range(rows))


def test_where_an_output_lies():
    place = slice(3, 7)
    assert output_part((7, 2), (4, 2), 7, place).of(torch.arange(14).view(7, 2)).tolist()[0] == [6, 7]
    assert output_part((21, 2), (12, 2), 7, place)[:2] == (9, 21)
    assert not output_part((), (), 7, place).by_rows
    with pytest.raises(CannotRun, match="for 4 of 7 rows"):
        output_part((7, 2), (3, 2), 7, place)


def test_parts_by_their_shapes():
    assert part_of((8, 5), [(8, 5)] * 2, 1, 2).axis is None
    assert part_of((8, 5), [(4, 5)] * 2, 1, 2)[:3] == (0, 4, 4)
    assert part_of((8, 5), [(8, 3), (8, 2)], 1, 2)[:3] == (1, 3, 2)
    assert part_of((8, 5), [(4, 5)] * 4, 2, 2) == (0, 0, 4, (2, 3))  # two groups of two
    assert part_of((8, 5), [(20,)] * 2, 0, 2) is None


def test_who_hangs():
    waits = Whereabouts("step 1", "all_reduce", "net.py:3", False)
    status, words = hung("step 1", {0: waits}, 2, 9.0)
    assert status == "refuted" and "rank 0 (in all_reduce, called at net.py:3) waits" in words
    assert hung("step 1", {0: waits, 1: waits}, 2, 9.0)[0] == "refuted"
    assert hung("step 1", {0: waits, 1: waits._replace(busy=True)}, 2, 9.0)[0] == "inconclusive"
    assert hung("step 1", {0: waits, 1: None}, 2, 9.0) == ("inconclusive", "rank 1 no longer answers in step 1")

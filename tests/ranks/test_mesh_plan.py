"""What `gradproof sizes --mesh` says beside what ranks really send and hold."""

import json

import pytest
from ranks.planned import sent_and_held, steps_of_one
from typer.testing import CliRunner

from gradproof.cli import app
from gradproof.models.dense import DenseConfig
from gradproof.models.moe import MoEConfig
from gradproof.models.sizes import cost
from gradproof.models.transformer import TransformerConfig
from gradproof.ranks.mesh_shape import MeshShape
from gradproof.ranks.pool import Pool
from gradproof.ranks.traffic import KINDS
from gradproof.train.mesh_plan import MeshPlan, Rates, plan_of

# With k = E every expert gets every row, so that the exchange is even, as the plan has it.
EVEN = dict(name="nano", balance=0.1, k=4)
WIDE = {**EVEN, "hidden": 900}  # 31 MB of parameters, two thirds of a bucket; sharded pieces weigh more than rows
TWO = (("data=2", False), ("data=2", True), ("experts=2", False))
GIVEN = ["--bandwidth", "2", "--latency", "50", "--tflops", "0.1", "--memory-bandwidth", "10"]


def as_planned(pool, options, text, sharded, rows):
    """Bytes to 2%, by kind, as counted here and by the kernel; memory to 10%."""
    plan = plan_of(MoEConfig.sized(**options), rows, MeshShape.parse(text), sharded)
    answers = pool.run(sent_and_held, options, text, sharded, rows)
    for own, (sent, calls, wire, peak) in zip(plan.ranks, answers, strict=True):
        assert sent == pytest.approx(own.sent, rel=0.02) and calls == own.calls
        assert wire is None or wire == pytest.approx(sum(own.sent.values()), rel=0.02)
        assert peak == pytest.approx(own.total, rel=0.1)


@pytest.mark.parametrize("layout", TWO, ids=str)
def test_two_ranks_send_and_hold_what_is_planned(two_ranks, layout):
    """A bucket sent twice, an operation that is not counted, or a buffer that is not planned would differ."""
    as_planned(two_ranks, EVEN, *layout, rows=801)


@pytest.mark.slow
@pytest.mark.parametrize("layout", TWO, ids=str)
def test_two_wide_ranks(two_ranks, layout):
    as_planned(two_ranks, WIDE, *layout, rows=801)


@pytest.mark.slow
@pytest.mark.parametrize("layout", (("data=4", False), ("data=4", True), ("data=2,experts=2", True)), ids=str)
def test_four_ranks_send_and_hold_what_is_planned(four_ranks, layout):
    as_planned(four_ranks, WIDE, *layout, rows=1602)


def test_one_rank_has_the_bits_of_no_mesh():
    """Sent all the same, nothing is added and nothing is lost."""
    with Pool(1) as pool:
        assert pool.run(steps_of_one, EVEN, False, None)[0][::2] == (True, 0)
        parts = {"experts": "cpu", "route": "cpu", "adamw": "cpu"}
        assert pool.run(steps_of_one, EVEN, True, parts)[0] == (True, "MeshParts", 15)


def test_a_mesh_of_one_rank_is_one_process():
    config = MoEConfig.sized("tiny")
    (own,) = plan_of(config, 500, MeshShape(), sharded=True).ranks
    alone = cost("", config, 500)
    assert own.total == alone.total and own.sent == {}


def test_what_is_shared_out():
    """Every parameter has moments on one rank of the sharded axis, and every expert is held once along `experts`."""
    config = MoEConfig.sized("tiny")
    flat = cost("", config, 1).weights
    whole = plan_of(config, 800, MeshShape(data=4), sharded=True)
    assert sum(own.moments for own in whole.ranks) == 2 * flat
    assert [own.rows for own in whole.ranks] == [200] * 4
    spread = plan_of(config, 800, MeshShape(experts=4))
    router = 4 * (96 * 4 + 64)
    assert sum(own.weights - router for own in spread.ranks) == flat - router


@pytest.mark.parametrize("config", (DenseConfig.sized("nano"), TransformerConfig.sized("nano")), ids=("dense", "text"))
def test_other_families(config):
    flat = cost("", config, 1).weights
    plan = plan_of(config, 512, MeshShape(data=2))
    assert plan.flops > 6 * 256 * 100_000  # of 195,000 parameters, some are read and not multiplied
    own = plan.busiest
    assert own.sent["all-reduce"] == pytest.approx(flat, rel=0.01)
    with pytest.raises(ValueError, match="only a mixture has experts to spread; use data=2"):
        plan_of(config, 512, MeshShape(experts=2))


def test_seconds_by_hand():
    """200 bytes for gradients and 30 for rows at 100 a second, 3 operations of 0.1 s; products 4 s, the optimizer 1."""
    alone = plan_of(MoEConfig.sized("nano"), 1, MeshShape()).ranks[0]
    own = alone._replace(
        moments=25, sent={"all-reduce": 200, "all-to-all": 30}, calls={"all-reduce": 2, "all-to-all": 1}
    )
    plan = MeshPlan([own], alone._replace(moments=50), flops=40)
    seconds = plan.seconds(Rates(dict.fromkeys(KINDS, 100.0), 0.1, 10.0, 100.0))
    assert seconds.alone == pytest.approx(4 + 2)
    assert seconds.open == pytest.approx(4 + 1 + 2.2 + 0.4)
    assert seconds.hidden == pytest.approx(5 + 0.4)


def call(*args):
    return CliRunner().invoke(app, ["sizes", *args])


def test_the_command(tmp_path):
    file = tmp_path / "plan.json"
    done = call("--mesh", "data=2,experts=2", "--batch", "4096", "--shard-optimizer", *GIVEN, "--json", str(file))
    assert done.exit_code == 0, done.output
    assert "efficiency" in done.output and "(given)" in done.output and "measured" not in done.output
    record = json.loads(file.read_text())
    assert [size["name"] for size in record["sizes"]] == ["nano", "tiny", "medium", "full"]
    plan = plan_of(MoEConfig.sized("nano"), 4096, MeshShape(2, 2), True)
    assert [rank["total"] for rank in record["sizes"][0]["ranks"]] == [own.total for own in plan.ranks]
    low, high = record["sizes"][0]["efficiency"]
    assert 0 < low <= high


def test_one_size_rank_by_rank():
    done = call("--mesh", "data=3", "--batch", "100", "--size", "nano", *GIVEN)
    assert "ranks 0 to 1, each: 33 rows" in done.output and "rank 2: 34 rows" in done.output
    done = call("--mesh", "data=4", "--batch", "100", "--size", "nano", *GIVEN)
    assert "ranks 0 to 3, each: 25 rows" in done.output


@pytest.mark.slow
def test_rates_are_measured_here():
    done = call("--mesh", "data=2", "--batch", "8192", "--size", "nano", "--json", "-")
    record = json.loads(done.stdout)
    assert record["rates"]["measured"] == ["bandwidth", "latency", "flops", "memory"]
    assert record["sizes"][0]["efficiency"][0] > 0


@pytest.mark.parametrize(
    ("args", "said"),
    (
        (("--mesh", "data=2,experts=3"), "4 experts cannot be shared equally among 3 ranks"),
        (("--mesh", "experts=2", "--size", "dense-0.7b"), "only a mixture has experts"),
        (("--mesh", "rows=2"), "is not an axis; write data=2,experts=2"),
        (("--mesh", "data=8", "--batch", "7"), "leaves some of the 8 ranks"),
        (("--mesh", "data=2", "--size", "huge"), "there is no size 'huge'"),
        (("--mesh", "data=2", "--tflops", "0"), "--tflops 0.0 must be a number above 0"),
        (("--mesh", "data=2", "--measure", "nano"), "--measure runs in one process"),
        (("--batch", "7"), "--batch needs --mesh, for example --mesh data=2"),
        (("--shard-optimizer",), "--shard-optimizer needs --mesh"),
    ),
)
def test_a_sentence_for_what_cannot_be_planned(args, said):
    done = call(*args)
    assert done.exit_code == 2 and said in " ".join(done.output.split())

"""A small training in float64 on any layout, and what each rank ends with. Runs in the ranks of a pool."""

import torch
import torch.distributed as dist
from safetensors.numpy import save_file

from gradproof.models.expert_ranks import ExpertRanks
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ranks.mesh import Mesh
from gradproof.ranks.mesh_shape import MeshShape
from gradproof.streams import seeded
from gradproof.train import checkpoint, gradient_sum, mesh_checkpoint
from gradproof.train.adamw import AdamW
from gradproof.train.gradient_sum import GradientSum
from gradproof.train.load import restore
from gradproof.train.loss import Loss
from gradproof.train.replicas import Drifted
from gradproof.train.schedule import Schedule
from gradproof.train.step import TrainStep

STEPS = 50
CONFIG = dict(inputs=6, outputs=5, experts=4, hidden=10, depth=1, k=2, balance=0.2, z_loss=0.01, correction=0.02)
LAYOUTS = {
    "one": ("data=1", False),
    "data2": ("data=2", False),
    "data2 sharded": ("data=2", True),
    "experts2": ("experts=2", False),
    "experts2 sharded": ("experts=2", True),
    "data4": ("data=4", False),
    "data2 experts2": ("data=2,experts=2", False),
    "data2 experts2 sharded": ("data=2,experts=2", True),
}


def batch_of(s, inputs=6, classes=5):
    """Batches of 1 to 23 rows, so that ranks have unequal shares and some ranks none."""
    generator = seeded("layouts", s)
    rows = int(torch.randint(1, 24, (), generator=generator))
    x_TI = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    return x_TI, torch.randint(classes, (rows,), generator=generator)


def build(layout, options=None, **how):
    """Model, step and mesh of this rank; no mesh for the layout `one`."""
    text, sharded = LAYOUTS[layout]
    shape, config = MeshShape.parse(text), MoEConfig(**{**CONFIG, **(options or {})})
    mesh = None if layout == "one" else Mesh(shape)
    ranks = ExpertRanks(mesh, config.experts) if mesh is not None and shape.experts > 1 else None
    model = MoE(config, seed=3, dtype=torch.float64, ranks=ranks)
    if (options or {}).get("router") != "sheaf":
        model.params["router.bias"][3] = -30.0  # expert 3 gets hardly a row, its rank few
    weight_C = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    loss = Loss("cross_entropy", class_weight_C=weight_C)
    schedule = Schedule(STEPS, "warmup-cosine", 0.1)
    optimizer = AdamW(0.02, weight_decay=0.1)
    how = dict(clip=0.5, schedule=schedule, mesh=mesh, shard_optimizer=sharded, **how)
    return model, TrainStep(model, loss, optimizer, "fp64", **how), mesh


def train(step, mesh, first, last):
    """Steps first : last; the results' numbers."""
    figures = []
    for s in range(first, last):
        x_TI, target_T = batch_of(s)
        own = slice(None) if mesh is None else mesh.share(len(x_TI))
        result = step(x_TI[own], target_T[own])
        numbers = (result.loss, result.grad_norm, result.entropy, result.energy, result.skipped)
        figures.append([float(number) for number in numbers] + result.load.tolist())
    return torch.tensor(figures, dtype=torch.float64)


def trajectory(layout, options=None, **how):
    """(figures, parameters by name, buffers) of this rank after all steps."""
    model, step, mesh = build(layout, options, **how)
    figures = train(step, mesh, 0, STEPS)
    ended = {name: own.clone() for name, own in (*model.params.items(), *model.buffers.items())}
    if mesh is not None:
        mesh.pulse.close()
    return figures, ended


def in_buckets(layout, size=4096):
    """The trajectory with buckets of so few bytes that there are several, and how many of them each backward sent
    before it was done."""
    before, finish = [], GradientSum.finish

    def counted(sums):
        before.append((len(sums.buckets) - len(sums._left), len(sums.buckets)))
        finish(sums)

    kept, gradient_sum.BUCKET, GradientSum.finish = gradient_sum.BUCKET, size, counted
    try:
        return trajectory(layout), before
    finally:
        gradient_sum.BUCKET, GradientSum.finish = kept, finish


def rank():
    return dist.get_rank()


def save_after(layout, folder, steps):
    """A checkpoint of this layout after so many steps; returns the names of its files."""
    model, step, mesh = build(layout)
    train(step, mesh, 0, steps)
    state = {"progress": {}}
    if mesh is None:
        checkpoint.save(folder, steps, {**model.params, **model.buffers}, step.state(), state)
    else:
        parts = step.training.written_model(), step.training.written()
        mesh_checkpoint.save(mesh, folder, steps, *parts, state)
        mesh.pulse.close()
    return sorted(file.name for file in (folder / f"step-{steps}").iterdir())


def resume_from(layout, folder, steps):
    """The trajectory from a checkpoint on, on this layout."""
    model, step, mesh = build(layout)
    with torch.no_grad():
        for own in model.params.values():
            own.fill_(7.0)
    saved = checkpoint.load(folder / f"step-{steps}")
    restore(model, saved)
    step.load_state(saved.tensors(checkpoint.STEP), steps)
    figures = train(step, mesh, steps, STEPS)
    if mesh is not None:
        mesh.pulse.close()
    return figures, {name: own.clone() for name, own in (*model.params.items(), *model.buffers.items())}


def save_on_full_disk(layout, folder, steps):
    """Rank 1 cannot write; what each rank says."""
    _, step, mesh = build(layout)
    train(step, mesh, 0, steps)
    part = step.training.written_model(), step.training.written()
    if mesh.rank == 1:
        checkpoint.save_file = _full
    try:
        mesh_checkpoint.save(mesh, folder, steps, *part, {"progress": {}})
    except OSError as error:
        return str(error)
    finally:
        checkpoint.save_file = save_file
        mesh.pulse.close()
    return ""


def _full(*args):
    raise OSError(28, "No space left on device")


def drift(layout, victim, counted=True):
    """Somebody changes a number on one rank between two steps; what the comparison says on each rank."""
    model, step, mesh = build(layout)
    replicas = step.training.replicas
    train(step, mesh, 0, 3)
    replicas.compare(3)
    if mesh.rank == victim:
        name = next(name for name in model.params if name.endswith("linear.1.weight"))
        model.params[name][1, 2] += 1e-9
        if not counted:
            replicas.after_step()
    train(step, mesh, 3, 5)
    try:
        replicas.compare(5)
    except Drifted as drifted:
        return str(drifted)
    finally:
        mesh.pulse.close()
    return ""

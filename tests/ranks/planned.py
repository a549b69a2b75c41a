"""What each rank of a training step sent and held. Runs in the ranks of a pool."""

import os

import torch
import torch.distributed as dist

from gradproof.models.expert_ranks import ExpertRanks
from gradproof.models.moe import MoE, MoEConfig
from gradproof.ranks.mesh import Mesh
from gradproof.ranks.mesh_shape import MeshShape, share
from gradproof.ranks.traffic import wire_bytes
from gradproof.streams import seeded
from gradproof.train.adamw import AdamW
from gradproof.train.peak import peak_bytes
from gradproof.train.step import TrainStep

STEPS = 3


def batch_of(rows):
    generator = seeded("planned", rows)
    return torch.randn(rows, 96, generator=generator), torch.randint(20, (rows,), generator=generator)


def build(options, mesh, sharded=False, **how):
    config = MoEConfig.sized(**options)
    ranks = ExpertRanks(mesh, config.experts) if mesh is not None and mesh.shape.experts > 1 else None
    model = MoE(config, ranks=ranks)
    return TrainStep(model, "cross_entropy", AdamW(), clip=1.0, mesh=mesh, shard_optimizer=sharded, **how)


def sent_and_held(options, text, sharded, rows):
    """(bytes sent in a step by kind, operations by kind, bytes sent as the kernel counts them, the peak)."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    mesh = Mesh(MeshShape.parse(text))
    own = share(rows, mesh.rank, mesh.size)

    def work(steps):
        x_TI, target_T = batch_of(own.stop - own.start)
        step = build(options, mesh, sharded)
        for _ in range(steps):
            result = step(x_TI, target_T)
        return step, result, (x_TI, target_T)

    step, _, batch = work(2)
    peak = peak_bytes(lambda: work(2), "cpu")
    dist.barrier()
    mesh.traffic.clear()
    before = wire_bytes()
    for _ in range(STEPS):
        step(*batch)
    sent, calls = dict(mesh.traffic.sent), dict(mesh.traffic.calls)
    dist.barrier()
    wire = None if before is None else (wire_bytes() - before) / STEPS
    mesh.close()
    return {kind: n / STEPS for kind, n in sent.items()}, {k: n / STEPS for k, n in calls.items()}, wire, peak


def steps_of_one(options, sends, kernels):
    """The parameters' bits and the losses after some steps, on a mesh of one rank and without one."""
    ended = []
    for mesh in (None, Mesh(MeshShape(), always=sends)):
        step = build(options, mesh, kernels=kernels)
        losses = [step(*batch_of(70)).loss for _ in range(5)]
        ended.append(torch.cat([step.model.params.flat_P, torch.stack(losses)]))
        plan = type(step.plan([batch_of(70)])).__name__
    mesh.close()
    return torch.equal(*(own.view(torch.int32) for own in ended)), plan, mesh.traffic.calls.total()

"""Distributed steps, right and wrong, as users would hand them in: each function returns a RankCase. Nothing is seeded,
so that every rank draws weights of its own, as ranks that torchrun started do. Seven rows: the shares are uneven."""

import os
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from gradproof import RankCase

ROWS = 7


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.norm(self.a(x))))


def data(width=6, rows=ROWS):
    return (torch.randn(rows, width),)


def everywhere(module):
    """Rank 0's values on every rank."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.data, 0)
    return module


def average(grad, group=None):
    grad = grad.clone()
    dist.all_reduce(grad, group=group)
    return grad / dist.get_world_size()


def summed(grad):
    grad = grad.clone()
    dist.all_reduce(grad)
    return grad


def by_hooks(reduce, but=(), start=everywhere):
    """Reduces each gradient as soon as it is there."""

    def wrap(module):
        start(module)
        for name, p in module.named_parameters():
            if name not in but:
                p.register_hook(reduce)
        return module

    return wrap


# Data parallel.


def ddp():
    return RankCase(Net(), data(), DistributedDataParallel)


def ddp_in_wrappers():
    """Whose parameters are called `inner._orig_mod.module.a.weight`."""
    return RankCase(Net(), data(), lambda module: Outer(Middle(DistributedDataParallel(module))))


class Middle(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, *given):
        return self._orig_mod(*given)


class Outer(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.inner = module

    def forward(self, *given):
        return self.inner(*given)


def hooks():
    return RankCase(Net(), data(), by_hooks(average))


def hooks_that_sum():
    return RankCase(Net(), data(), by_hooks(summed), reduction="sum")


def forgotten_for_one():
    return RankCase(Net(), data(), by_hooks(average, but=("norm.weight",)))


def forgotten_for_all():
    return RankCase(Net(), data(), everywhere)


def averaged_twice():
    def wrap(module):
        for p in module.parameters():
            p.register_hook(lambda grad: grad / dist.get_world_size())
        return DistributedDataParallel(module)

    return RankCase(Net(), data(), wrap)


def summed_not_averaged():
    return RankCase(Net(), data(), by_hooks(summed))


def averaged_not_summed():
    return RankCase(Net(), data(), DistributedDataParallel, reduction="sum")


def gradient_of_rank_0():
    def broadcast(grad):
        grad = grad.clone()
        dist.broadcast(grad, 0)
        return grad

    return RankCase(Net(), data(), by_hooks(broadcast))


def no_broadcast():
    return RankCase(Net(), data(), by_hooks(average, start=lambda module: None))


def one_not_broadcast():
    def start(module):
        own = module.b.bias.data.clone()
        everywhere(module)
        module.b.bias.data.copy_(own)

    return RankCase(Net(), data(), by_hooks(average, start=start))


def wrong_group():
    """A group for each rank: nobody is averaged with anybody."""

    def wrap(module):
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        return DistributedDataParallel(everywhere(module), process_group=groups[dist.get_rank()])

    return RankCase(Net(), data(), wrap)


def pairs():
    """Of four ranks, each two are averaged."""

    def wrap(module):
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        return DistributedDataParallel(everywhere(module), process_group=halves[dist.get_rank() // 2])

    return RankCase(Net(), data(), wrap)


def sync_left_off():
    def wrap(module):
        wrapped = DistributedDataParallel(module)
        wrapped.require_backward_grad_sync = False  # as no_sync() does, and it is never undone
        return wrapped

    return RankCase(Net(), data(), wrap)


# By hand, after the backward.


def flat(module, left_out=0):
    """All gradients in one bucket."""
    grads = [p.grad for p in module.parameters()]
    bucket = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(bucket[: len(bucket) - left_out])
    bucket[: len(bucket) - left_out] /= dist.get_world_size()
    parts = bucket.split([grad.numel() for grad in grads])
    for grad, part in zip(grads, parts, strict=True):
        grad.copy_(part.view_as(grad))


def bucket():
    return RankCase(Net(), data(), everywhere, after_backward=flat)


def bucket_without_tail():
    return RankCase(Net(), data(), everywhere, after_backward=lambda module: flat(module, left_out=2))


class Accumulating(nn.Module):
    """Averages what has come together, outside of `no_sync`."""

    def __init__(self, module, early=False):
        super().__init__()
        self.module, self.early, self.syncs = everywhere(module), early, True
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p):
        if self.syncs != self.early:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    @contextmanager
    def no_sync(self):
        self.syncs = False
        yield
        self.syncs = True

    def forward(self, *given):
        return self.module(*given)


def accumulating():
    return RankCase(Net(), data(), Accumulating)


class TooEarly(Accumulating):
    """Averages the first micro-batch alone."""

    def reduce(self, p):
        if not hasattr(p, "seen") or p.seen is not p.grad:
            super().reduce(p)
        p.seen = p.grad


def reduced_too_early():
    return RankCase(Net(), data(), TooEarly)


def not_waited_for():
    """Sums that are under way when the optimizer would begin."""

    def wrap(module):
        def start(p):
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad, async_op=True)

        for p in everywhere(module).parameters():
            p.register_post_accumulate_grad_hook(start)
        return module

    return RankCase(Net(), data(), wrap)


# Updates and state.


class PartlyUpdated(nn.Module):
    """Gives the optimizer all of its parameters on rank 0 only."""

    def __init__(self, module):
        super().__init__()
        self.module = DistributedDataParallel(module)

    def forward(self, *given):
        return self.module(*given)

    def parameters(self, recurse=True):
        own = super().named_parameters(recurse=recurse)
        return (p for name, p in own if dist.get_rank() == 0 or "norm" not in name)


def updated_on_rank_0_only():
    return RankCase(Net(), data(), PartlyUpdated)


def drifting():
    """Rank 1 decays a weight by itself at every forward."""

    def wrap(module):
        def decay(*_):
            with torch.no_grad():
                module.norm.weight *= 1 - 1e-6 * dist.get_rank()

        wrapped = DistributedDataParallel(module)
        wrapped.register_forward_pre_hook(decay)
        return wrapped

    return RankCase(Net(), data(), wrap)


class Normed(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 10), norm, nn.Linear(10, 3)

    def forward(self, x):
        return self.b(torch.tanh(self.norm(self.a(x))))


class Sum(torch.autograd.Function):
    """Over all ranks, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, dy):
        return summed(dy)


class SyncedNorm(nn.BatchNorm1d):
    """torch's SyncBatchNorm runs on GPUs only."""

    def forward(self, x):
        count = Sum.apply(torch.tensor(float(len(x))))
        mean = Sum.apply(x.sum(0)) / count
        variance = Sum.apply(((x - mean) ** 2).sum(0)) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1)
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var), self.momentum)
            self.num_batches_tracked += 1
        return (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


def synced_norm():
    def wrap(module):
        module.norm.__class__ = SyncedNorm
        return DistributedDataParallel(module)

    return RankCase(Normed(nn.BatchNorm1d(10)), data(), wrap)


def unsynced_norm():
    return RankCase(Normed(nn.BatchNorm1d(10)), data(), DistributedDataParallel)


class Tracked(nn.Module):
    """A running mean of what comes by, which nothing reads in training."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        self.seen.lerp_(x.detach().mean(0), 0.1)
        return self.net(x)


def unsynced_buffer():
    return RankCase(Tracked(), data(), DistributedDataParallel)


# Losses inside the module.


class Loss(nn.Module):
    """The mean over its rows, or over all rows where it is told how many there are on all ranks."""

    def __init__(self):
        super().__init__()
        self.net, self.share = Net(), None

    def forward(self, x, target):
        loss = nn.functional.mse_loss(self.net(x), target, reduction="none").mean(1)
        return loss.mean() if self.share is None else loss.sum() / self.share()


def labelled(rows=ROWS):
    return torch.randn(rows, 6), torch.randn(rows, 3)


def loss_of_even_shares():
    return RankCase(Loss(), labelled(8), DistributedDataParallel)


def loss_by_local_rows():
    return RankCase(Loss(), labelled(), DistributedDataParallel)


def loss_by_global_rows():
    def wrap(module):
        def rows(net, given):
            count = summed(torch.tensor(float(len(given[0])))) / dist.get_world_size()
            module.share = lambda: count

        module.register_forward_pre_hook(rows)
        return DistributedDataParallel(module)

    return RankCase(Loss(), labelled(), wrap)


# Sharded.


class Gather(torch.autograd.Function):
    """The parts of all ranks, one after the other; backward, each rank's part averaged."""

    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, dy):
        return average(dy).chunk(dist.get_world_size())[dist.get_rank()]


class Stale(torch.autograd.Function):
    """The same gradient, with values of some time ago."""

    @staticmethod
    def forward(ctx, part, whole):
        return whole.clone()

    @staticmethod
    def backward(ctx, dy):
        return average(dy).chunk(dist.get_world_size())[dist.get_rank()], None


class ShardedLinear(nn.Module):
    """Each rank keeps a part of the weight, and all of the bias."""

    def __init__(self, linear, stale=False):
        super().__init__()
        own = everywhere(linear).weight.data.chunk(dist.get_world_size())[dist.get_rank()]
        self.weight, self.bias, self.stale, self.whole = nn.Parameter(own.clone()), linear.bias, stale, None
        self.bias.register_hook(average)

    def forward(self, x):
        if self.whole is None or not self.stale:
            weight = Gather.apply(self.weight)
            self.whole = weight.detach()
        else:
            weight = Stale.apply(self.weight, self.whole)
        return nn.functional.linear(x, weight, self.bias)


def sharded(stale=False):
    def wrap(module):
        by_hooks(average, but=("0.weight", "0.bias"))(module)
        module[0] = ShardedLinear(module[0], stale)
        return module

    return RankCase(nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)), data(), wrap)


def stale_shards():
    return sharded(stale=True)


class Block(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary=11, width=8, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def tokens():
    return (torch.randint(11, (ROWS, 5)),)


def ddp_transformer():
    return RankCase(Transformer(), tokens(), DistributedDataParallel)


def shard_each(module):
    for block in module.blocks:
        fully_shard(block)
    return fully_shard(module)


def fsdp_transformer():
    return RankCase(Transformer(), tokens(), shard_each)


def fsdp_summed():
    """Gradients that are not divided by the number of ranks."""

    def wrap(module):
        shard_each(module)
        module.set_gradient_divide_factor(1.0)
        for block in module.blocks:
            block.set_gradient_divide_factor(1.0)
        return module

    return RankCase(Transformer(), tokens(), wrap)


def fsdp_norm_left_out():
    """The norms are left to every rank, and nobody reduces them."""

    def wrap(module):
        everywhere(module)
        norms = {p for block in module.blocks for p in block.norms.parameters()}
        fully_shard(module, ignored_params=norms)
        return module

    return RankCase(Transformer(), tokens(), wrap)


# Tensor parallel: every rank has all rows.


def heads_apart():
    """The first rank's part of a weight is every second row, not the first half."""

    class Every(HandmadeFeed):
        def __init__(self, feed):
            whole = everywhere(feed).up.weight.data.clone()
            super().__init__(feed)
            self.up.weight = nn.Parameter(whole[dist.get_rank() :: dist.get_world_size()].clone())

    return RankCase(Feed(), data(), Every, shares=1)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def tensor_parallel():
    def wrap(module):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for p in module.norm.parameters():
            dist.broadcast(p.data, 0)
        return parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    return RankCase(Feed(), data(), wrap, shares=1)


class Entering(torch.autograd.Function):
    """A column-parallel layer's input: as it is, and its gradient added up over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return summed(dy)


class Leaving(torch.autograd.Function):
    """A row-parallel layer's output: added up over the ranks, and its gradient as it is."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, dy):
        return dy


class HandmadeFeed(nn.Module):
    """Columns of `up` and rows of `down` on each rank."""

    def __init__(self, feed, enter=Entering.apply, leave=Leaving.apply):
        super().__init__()
        everywhere(feed)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.norm, self.up, self.down, self.enter, self.leave = feed.norm, feed.up, feed.down, enter, leave
        self.up.weight = nn.Parameter(feed.up.weight.data.chunk(ranks)[rank].clone())
        self.up.bias = nn.Parameter(feed.up.bias.data.chunk(ranks)[rank].clone())
        self.down.weight = nn.Parameter(feed.down.weight.data.chunk(ranks, 1)[rank].clone())

    def forward(self, x):
        hidden = torch.tanh(self.up(self.enter(self.norm(x))))
        return x + self.leave(nn.functional.linear(hidden, self.down.weight)) + self.down.bias


def handmade_tensor_parallel():
    return RankCase(Feed(), data(), HandmadeFeed, shares=1)


def column_input_not_reduced():
    return RankCase(Feed(), data(), lambda feed: HandmadeFeed(feed, enter=lambda x: x), shares=1)


def row_output_reduced_twice():
    """The gradient of a row-parallel output is added up as well."""
    return RankCase(Feed(), data(), lambda feed: HandmadeFeed(feed, leave=Sum.apply), shares=1)


class SplitRows(torch.autograd.Function):
    """This rank's rows of what all have; backward, those of all."""

    @staticmethod
    def forward(ctx, x):
        return x.chunk(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx, dy):
        parts = [torch.empty_like(dy) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, dy.contiguous())
        return torch.cat(parts)


class GatherRows(torch.autograd.Function):
    """All rows, of what each has some; backward, the sum of all ranks' gradients of these."""

    @staticmethod
    def forward(ctx, x):
        return SplitRows.backward(ctx, x)

    @staticmethod
    def backward(ctx, dy):
        return summed(dy).chunk(dist.get_world_size())[dist.get_rank()].clone()


class SequenceParallel(HandmadeFeed):
    """The norm runs on a share of the rows, so that its gradients must be added up over the ranks."""

    def __init__(self, feed, reduces=True):
        super().__init__(feed)
        for p in feed.norm.parameters():
            if reduces:
                p.register_hook(summed)

    def forward(self, x):
        hidden = torch.tanh(self.up(GatherRows.apply(self.norm(SplitRows.apply(x)))))
        return x + self.leave(nn.functional.linear(hidden, self.down.weight)) + self.down.bias


def sequence_parallel():
    return RankCase(Feed(), data(rows=8), SequenceParallel, shares=1)


def parallel_norm_not_reduced():
    return RankCase(Feed(), data(rows=8), lambda feed: SequenceParallel(feed, reduces=False), shares=1)


def data_and_tensor_parallel():
    """Two groups of two ranks: each has a share of the rows and, in it, each rank a part of the weights."""

    def wrap(module):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return fully_shard(parallelize_module(module, mesh["tensor"], plan), mesh=mesh["data"])

    return RankCase(Feed(), data(), wrap, shares=2)


# Experts that get no rows on some ranks.


class Experts(nn.Module):
    """Rows with a positive first entry go to one expert, the others to the other."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        first = x[:, 0] > 0
        y = x.new_zeros(len(x), 3)
        for expert, mask in zip(self.experts, (first, ~first), strict=True):
            if mask.any():
                y = y.masked_scatter(mask[:, None], expert(x[mask]).to(y))
        return y


def lopsided():
    """The last rank has rows for one expert only."""
    (x,) = data()
    x[:, 0] = x[:, 0].abs()
    x[0, 0] *= -1
    return (x,)


def experts():
    wrap = lambda module: DistributedDataParallel(module, find_unused_parameters=True)  # noqa: E731
    return RankCase(Experts(), lopsided(), wrap)


def experts_unused():
    return RankCase(Experts(), lopsided(), DistributedDataParallel)


# What ends a trial.


def collective_left_out():
    """Rank 1 takes no part in one of the sums."""

    def reduce(grad):
        return average(grad) if dist.get_rank() != 1 or grad.shape != (3,) else grad

    return RankCase(Net(), data(), by_hooks(reduce))


def dies():
    def wrap(module):
        def end(grad):
            if dist.get_rank() == 1:
                os._exit(9)
            return average(grad)

        return by_hooks(end)(module)

    return RankCase(Net(), data(), wrap)


def computes():
    def wrap(module):
        def spin(*_):
            end = time.monotonic() + 60
            while dist.get_rank() == 1 and time.monotonic() < end:
                pass

        module.register_forward_pre_hook(spin)
        return everywhere(module)

    return RankCase(Net(), data(), wrap)


def raises_on_rank_1():
    def wrap(module):
        if dist.get_rank() == 1:
            raise ValueError("no room here")
        return module

    return RankCase(Net(), data(), wrap)


def raises_later():
    """From the second forward on."""

    def wrap(module):
        calls = []

        def count(*_):
            calls.append(1)
            if len(calls) > 1 and dist.get_rank() == 1:
                raise RuntimeError("a second forward is not foreseen")

        module.register_forward_pre_hook(count)
        return by_hooks(average)(module)

    return RankCase(Net(), data(), wrap)


def communicates_itself():
    return RankCase(Normed(SyncedNorm(10)), data(), DistributedDataParallel)


def dropout():
    return RankCase(nn.Sequential(Net(), nn.Dropout(0.5)), data(), DistributedDataParallel)


def dropout_off():
    return RankCase(nn.Sequential(Net(), nn.Dropout(0.5)).eval(), data(), DistributedDataParallel)


def too_few_rows():
    return RankCase(Net(), data(rows=1), DistributedDataParallel)


def compiled():
    return RankCase(Net(), data(), lambda module: torch.compile(DistributedDataParallel(module), backend="eager"))


def plain_case():
    return Net(), data()


def bf16_on_the_way():
    """Gradients travel in bf16."""

    def reduce(grad):
        narrow = (grad / dist.get_world_size()).bfloat16()
        parts = [torch.empty_like(narrow) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, narrow)
        return sum(parts).to(grad.dtype)

    return RankCase(Net(), data(), by_hooks(reduce))


def wrong_in_float32():
    """Reduces what is in float64 alone."""

    def reduce(grad):
        return average(grad) if grad.dtype is torch.float64 else grad

    return RankCase(Net(), data(), by_hooks(reduce))


def flat_pieces():
    """The first FSDP, which keeps its parameters in flat pieces."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def wrap(module):
        return FullyShardedDataParallel(module, use_orig_params=True, device_id=torch.device("cpu"))

    return RankCase(Net(), data(), wrap)


def hsdp():
    """Two replicas of two shards each."""

    def wrap(module):
        from torch.distributed.device_mesh import init_device_mesh

        everywhere(module)
        return fully_shard(module, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))

    return RankCase(Net(), data(), wrap)


def hsdp_unseeded():
    def wrap(module):
        from torch.distributed.device_mesh import init_device_mesh

        return fully_shard(module, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))

    return RankCase(Net(), data(), wrap)

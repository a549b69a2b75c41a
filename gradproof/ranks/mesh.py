"""Mesh: this process among its ranks, and the messages between them.

The groups are those of a torch DeviceMesh; gloo carries what is on a CPU, NCCL what is on a GPU. Along an axis of one
rank nothing is sent. An operation that fails because another rank is gone raises RankLost. Ranks of one host that
compute on its processor share out its cores.
"""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import init_device_mesh

from gradproof.ranks.cores import compute_first, own_place, share_out
from gradproof.ranks.mesh_shape import AXES, MeshShape, share
from gradproof.ranks.pulse import SILENCE, Pulse, RankLost
from gradproof.ranks.traffic import Traffic, of_all_reduce

Axis = Literal["data", "experts", "all"]
TIMEOUT = 60.0
MARGIN = 30.0  # seconds after which an operation fails by itself; before that, the pulse has named who is to blame
POLL = 0.02  # seconds
AT_ONCE = 1 << 16  # bytes up to which gloo's ranks send each other the whole tensor: a ring takes several turns

# Renamed in torch 2.13.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def launched() -> bool:
    """Whether torchrun, or whoever sets the same variables, started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


class Pending:
    """Operations that are under way, and what is to be done with what they bring."""

    def __init__(self, mesh: Mesh, works: Sequence[Any], then: Callable[[], object] | None = None):
        self.mesh, self.works, self.then = mesh, works, then

    def wait(self) -> None:
        """Until they are done; on a GPU, what comes next in the stream waits."""
        with self.mesh.talking():
            for work in self.works:
                work.wait()
        if self.then is not None:
            self.then()


class Mesh:
    """`store` is the process group's; `always` sends even where an axis has one rank, for measurements and tests."""

    _made = 0

    def __init__(self, shape: MeshShape, device: str = "cpu", timeout: float = TIMEOUT, *, always: bool = False):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if shape.ranks != self.size:
            raise ValueError(
                f"mesh {shape} needs {shape.ranks} ranks and there are {self.size}; "
                f"start it with torchrun --nproc-per-node {shape.ranks}"
            )
        self.shape, self.device, self.timeout, self.always = shape, device, timeout, always
        self._mesh = init_device_mesh(device, (shape.data, shape.experts), mesh_dim_names=AXES)
        self._groups = {axis: self._mesh.get_group(axis) for axis in AXES}
        Mesh._made += 1  # on every rank alike: what ranks of an earlier mesh said must not be heard by this one
        self.store: Any = PrefixStore(f"mesh-{Mesh._made}", dist.distributed_c10d._get_default_store())
        self.pulse = Pulse(self.store.clone(), self.rank, self.size, timeout)
        self.wish = 0.0  # what this rank wants all others to hear with the next step's numbers
        self.heard: Tensor | None = None  # the sum of all wishes
        self.traffic = Traffic()
        self._turns = 0
        if device == "cpu" and self.size > 1:
            share_out(self.texts(own_place()), self.rank, torch.get_num_threads())
            compute_first()
            self.traffic.clear()

    @property
    def spread(self) -> bool:
        """Whether there is anybody to talk to."""
        return self.size > 1 or self.always

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes and speaks for all."""
        return self.rank == 0

    def ranks(self, axis: Axis) -> int:
        """How many there are along an axis."""
        return self.size if axis == "all" else getattr(self.shape, axis)

    def at(self, axis: Axis) -> int:
        """Where this rank stands along it."""
        if axis == "all":
            return self.rank
        return self.rank // self.shape.experts if axis == "data" else self.rank % self.shape.experts

    def sends(self, axis: Axis) -> bool:
        return self.ranks(axis) > 1 or self.always

    def share(self, rows: int) -> slice:
        """Which rows of a batch are this rank's."""
        return share(rows, self.rank, self.size)

    def group(self, axis: Axis) -> Any:
        return None if axis == "all" else self._groups[axis]

    # What ranks say to each other.

    def sum_(self, tensor: Tensor, axis: Axis = "all") -> Tensor:
        """The sum over the ranks of an axis, in place."""
        self.start_sum(tensor, axis).wait()
        return tensor

    def start_sum(self, tensor: Tensor, axis: Axis = "all") -> Pending:
        """The same, under way."""
        if not self.sends(axis):
            return Pending(self, [])
        ranks, at_once = self.ranks(axis), sums_at_once(tensor)
        self.traffic.add("all-reduce", of_all_reduce(_size(tensor), ranks, at_once))
        if at_once:
            return self._start_sum_at_once(tensor, axis)
        with self.talking():
            return Pending(self, [dist.all_reduce(tensor, group=self.group(axis), async_op=True)])

    def _start_sum_at_once(self, tensor: Tensor, axis: Axis) -> Pending:
        """Every rank adds up what all others sent it, in the order of the ranks: all have the same bits."""
        ranks = self.ranks(axis)
        given_RN = tensor.reshape(1, -1).repeat(ranks, 1)
        taken_RN = torch.empty_like(given_RN)
        with self.talking():
            work = dist.all_to_all_single(taken_RN, given_RN, group=self.group(axis), async_op=True)
        return Pending(self, [work], lambda: tensor.copy_(taken_RN.sum(0).view_as(tensor)))

    def largest(self, number: float) -> float:
        """The largest of all ranks' numbers."""
        return max(float(text) for text in self.texts(str(number)))

    def exchange(self, rows_NI: Tensor, gives: list[int], takes: list[int], axis: Axis) -> Tensor:
        """Sends so many rows to each rank of an axis, in their order, and returns those that came, by sender."""
        if not self.sends(axis):
            return rows_NI
        taken_MI = rows_NI.new_empty(sum(takes), *rows_NI.shape[1:])
        others = sum(gives) - gives[self.at(axis)]
        self.traffic.add("all-to-all", others * math.prod(rows_NI.shape[1:]) * rows_NI.element_size())
        with self.talking():
            dist.all_to_all_single(taken_MI, rows_NI.contiguous(), takes, gives, group=self.group(axis))
        return taken_MI

    def start_scatter(self, flat: Tensor, pieces: Sequence[slice], axis: Axis) -> tuple[Pending, Tensor]:
        """Begins to add up, over the ranks of an axis, the piece of `flat` that is this rank's. Returns what to wait
        for, and rows_RP whose sum over R then is that piece. gloo has no such operation of its own, so that ranks
        exchange pieces and each adds up what it got: as many bytes as a ring sends."""
        own = pieces[self.at(axis)]
        length, lengths = own.stop - own.start, [piece.stop - piece.start for piece in pieces]
        if not self.sends(axis):
            return Pending(self, []), flat[own].view(1, -1)
        group = self.group(axis)
        self.traffic.add("reduce-scatter", _size(flat) - _size(flat[own]))
        with self.talking():
            if flat.is_cuda and len(set(lengths)) == 1:
                summed = flat.new_empty(length)
                return Pending(self, [_scatter(summed, flat, group=group, async_op=True)]), summed.view(1, -1)
            taken = flat.new_empty(length * len(pieces))
            takes = [length] * len(pieces)
            work = dist.all_to_all_single(taken, flat, takes, lengths, group=group, async_op=True)
        return Pending(self, [work]), taken.view(len(pieces), length)

    def start_gather(self, flat: Tensor, pieces: Sequence[slice], axis: Axis) -> Pending:
        """Begins to fill `flat` with every rank's piece of it, of which this rank's is in its place."""
        if not self.sends(axis):
            return Pending(self, [])
        own, group = flat[pieces[self.at(axis)]], self.group(axis)
        self.traffic.add("all-gather", _size(own) * (len(pieces) - 1))
        with self.talking():
            if flat.is_cuda and len({piece.stop - piece.start for piece in pieces}) == 1:
                return Pending(self, [_gather(flat, own, group=group, async_op=True)])
            # Each piece is a broadcast of its own: gloo's all-gather copies, and takes four times as long.
            ranks = dist.get_process_group_ranks(self._groups[axis] if axis != "all" else dist.group.WORLD)
            pairs = zip(ranks, pieces, strict=True)
            works = [dist.broadcast(flat[piece], rank, group=group, async_op=True) for rank, piece in pairs]
        return Pending(self, works)

    def texts(self, text: str) -> list[str]:
        """What every rank says, by rank."""
        if self.size == 1:
            return [text]
        own = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.rank] = len(text.encode())
        self.sum_(lengths)
        most = max(1, int(lengths.max()))
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: len(own)] = own[:most]
        taken = [torch.empty_like(padded) for _ in range(self.size)]
        with self.talking():
            dist.all_gather(taken, padded)
        pairs = zip(taken, lengths.tolist(), strict=True)
        return [bytes(said[:length].tolist()).decode() for said, length in pairs]

    def arrays(self, own: np.ndarray) -> np.ndarray:
        """What every rank has, one after the other; all have as much."""
        if self.size == 1:
            return own
        tensor = torch.from_numpy(np.ascontiguousarray(own))
        taken = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.talking():
            dist.all_gather(taken, tensor)
        return torch.cat(taken).numpy()

    def text(self, text: str = "") -> str:
        """What rank 0 says."""
        return self.texts(text if self.first else "")[0]

    # Who comes first, and who is missing.

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Rank 0 runs the block before the others do, however long it takes; if it fails there, all fail."""
        self._turns += 1
        key = f"turn/{self._turns}"
        if not self.first:
            self._wait_for(key)
        try:
            yield
        except BaseException as error:
            if self.first:
                self.store.set(key, f"failed {' '.join(str(error).split())}")
            raise
        if self.first:
            self.store.set(key, "done")

    def meet(self) -> None:
        """Waits until all ranks are here, however long their work takes, as long as they live."""
        self._turns += 1
        self.store.set(f"meet/{self._turns}/{self.rank}", "here")
        for rank in range(self.size):
            self._wait_for(f"meet/{self._turns}/{rank}", rank)

    def _wait_for(self, key: str, rank: int = 0) -> None:
        """Until rank `rank` has set a key."""
        looked = time.monotonic()
        with self.pulse.waiting():
            while not self.store.check([key]):
                time.sleep(POLL)
                if time.monotonic() - looked > 10 * SILENCE:
                    if rank in self.pulse.silent():
                        raise RankLost(f"rank {rank} does not answer", told=not self.pulse.speaks([rank]))
                    looked = time.monotonic()
        said = self.store.get(key).decode()
        if said.startswith("failed"):
            raise RankLost(f"rank {rank} stopped: {said.removeprefix('failed ')}", told=True)

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Waits for others; their absence is named."""
        try:
            with self.pulse.waiting():
                yield
        except RuntimeError as error:
            blamed = self.pulse.blame()
            detail = "" if blamed.ranks else f" ({' '.join(str(error).split())[:200]})"
            told = blamed.told or not self.pulse.speaks(blamed.ranks)
            raise RankLost(blamed.sentence + detail, told) from error

    def close(self) -> None:
        """Leaves the others in peace; all ranks have come this far. The process group stays."""
        self.pulse.end("it has finished")
        self.pulse.close()


def sums_at_once(tensor: Tensor) -> bool:
    """Whether ranks send each other all of a tensor to add it up."""
    return tensor.is_cpu and _size(tensor) <= AT_ONCE


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def watched(mesh: Mesh | None) -> AbstractContextManager[None]:
    """Within, every rank makes progress at least every `timeout` seconds."""
    return nullcontext() if mesh is None else mesh.pulse.watched()


def join(device: str = "cpu", timeout: float = TIMEOUT) -> bool:
    """Becomes one of the ranks that torchrun started; False where this process is one already."""
    if dist.is_initialized():
        return False
    seconds = datetime.timedelta(seconds=timeout + MARGIN)
    if device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", 0))
        torch.cuda.set_device(local)
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=seconds, device_id=torch.device("cuda", local))
    else:
        dist.init_process_group("gloo", timeout=seconds)
    return True


def leave() -> None:
    """Undoes `join`."""
    if dist.is_initialized():
        dist.destroy_process_group()


def open_mesh(shape: MeshShape | None, device: str = "cpu", timeout: float = TIMEOUT) -> Mesh:
    """The mesh of the ranks that torchrun started; without a shape, data parallel."""
    join(device, timeout)
    return Mesh(shape or MeshShape(data=dist.get_world_size()), device, timeout)

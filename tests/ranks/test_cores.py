"""Ranks of one host share out its cores."""

import os
import sys
import threading

import pytest
import torch

from gradproof.ranks.cores import SENDS, own_place, own_threads, share_out
from gradproof.ranks.mesh import Mesh
from gradproof.ranks.mesh_shape import MeshShape

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which cores a process may use")


@pytest.fixture
def given(monkeypatch):
    """What share_out sets, by thread, and nothing is set."""
    cores = {}
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, own: cores.update({thread: list(own)}))
    return cores


@pytest.mark.parametrize(
    "places, rank, threads, own",
    [
        (["a 0 1", "a 0 1"], 0, 1, [0]),
        (["a 0 1", "a 0 1"], 1, 1, [1]),
        (["a 2 3 6 7 8", "a 2 3 6 7 8"], 1, 2, [6, 7, 8]),
        (["a 0 1", "b 0 1", "a 0 1", "b 0 1"], 3, 1, [1]),  # hosts
        (["a 0 1 2 3", "a 0 1 2 3"], 0, 3, None),  # a part has fewer cores than a rank has threads
        (["a 0 1", "a 0 1", "a 0 1"], 2, 1, None),  # more ranks than cores
        (["a 0 1", "a 2 3"], 1, 1, None),  # somebody has shared them out already
        (["", ""], 1, 1, None),  # the system does not say
        (["a 0 1"], 0, 1, None),
    ],
)
def test_a_rank_gets_its_part(given, places, rank, threads, own):
    share_out(places, rank, threads)
    assert given.get(os.getpid()) == own


def test_all_threads_of_the_process_move(given):
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        share_out(["a 0 1"] * 2, 1, 1)
        assert {os.getpid(), thread.native_id} <= given.keys() and all(own == [1] for own in given.values())
    finally:
        stop.set()
        thread.join()


def _placed():
    mesh = Mesh(MeshShape(data=2))
    senders = [os.sched_getscheduler(thread) for thread, name in own_threads() if name == SENDS]
    Mesh(MeshShape(data=2)).close()  # a second one changes nothing
    mesh.close()
    return own_place(), senders, os.sched_getscheduler(0), mesh.traffic.sent, torch.get_num_threads()


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="needs two cores")
def test_two_ranks_have_cores_of_their_own(two_ranks):
    placed = two_ranks.run(_placed)
    two_ranks.close()  # the next test begins with ranks that may use all cores
    cores = [set(place.split()[1:]) for place, *_ in placed]
    assert all(cores) and not cores[0] & cores[1]
    assert cores[0] | cores[1] == {str(core) for core in os.sched_getaffinity(0)}
    for _, senders, own, sent, threads in placed:
        assert senders and set(senders) == {os.SCHED_BATCH} and own == os.SCHED_OTHER
        assert not sent and threads == 1

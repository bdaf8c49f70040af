"""Blocks begin on other CPUs in turn, on those that are like the first one, and the thread stays free to move."""

import os
from itertools import pairwise

import pytest

from gpubench.measure.worker import device
from gpubench.measure.worker.device import CpuTurns
from tests.unit.measure.builders import opened_worker

ALL = set(range(8))


@pytest.fixture
def system(monkeypatch):
    """Eight CPUs, the thread on number 1; `moves` has every affinity that was set."""
    moves = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(ALL), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: moves.append(set(cpus)), raising=False)
    monkeypatch.setattr(device, "current_cpu", lambda: 1)
    return moves


def blocks(moves):
    """The CPU of each block; after each move the thread is free again."""
    assert moves[1::2] == [ALL] * (len(moves) // 2)
    return [next(iter(cpus)) for cpus in moves[::2]]


@pytest.mark.parametrize(("alike", "among"), [
    ([], ALL), (["0-7"], ALL), (["0-3", "4-7"], {0, 1, 2, 3}), (["0-3", "4-7", "0-1,4-5", "2-3,6-7"], {0, 1}),
    (["4-7"], ALL),
])  # fmt: skip
def test_each_block_begins_on_another_cpu_that_is_like_the_first(system, alike, among):
    turns = CpuTurns(alike, "a")
    for _ in range(20 * len(among)):
        turns.next()
    found = blocks(system)
    assert all(first != second for first, second in pairwise(found))
    rounds = [found[start : start + len(among)] for start in range(0, len(found), len(among))]
    assert all(set(one) == among for one in rounds), "every CPU once before any comes again"
    assert len(among) < 3 or len(set(map(tuple, rounds))) > 1, "in other orders"


def test_workers_take_them_in_orders_of_their_own(system):
    orders = set()
    for seed in "abcdef":
        turns = CpuTurns([], seed)
        del system[:]
        for _ in ALL:
            turns.next()
        orders.add(tuple(blocks(system)))
    assert len(orders) > 3


def test_a_system_that_moves_no_threads_is_left_alone(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    CpuTurns(["0-3"], "a").next()


def test_one_cpu_is_left_alone(system):
    CpuTurns(["0-7", "1"], "a").next()
    assert system == []


def test_a_cpu_that_went_offline_ends_nothing(system, monkeypatch):
    def refuse(pid, cpus):
        raise OSError("no such CPU")

    turns = CpuTurns([], "a")
    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    turns.next()


def test_the_thread_of_this_system_is_free_afterwards():
    before = os.sched_getaffinity(0)
    turns = CpuTurns([], "a")
    for _ in range(len(before)):
        turns.next()
    assert os.sched_getaffinity(0) == before


def test_the_blocks_of_a_gpu_have_turns_and_those_of_the_cpu_none(monkeypatch, tmp_path):
    seeds = []
    monkeypatch.setattr(device, "CpuTurns", lambda alike, seed: seeds.append(seed))
    for device_id in ("fake:cpu", "fake:gpu"):
        opened_worker(device_id, tmp_path).device.close()
    assert seeds == ["fake:gpu 0.0"]

"""Asking a backend that yields for its GPUs may take seconds: it is asked for its CPUs, until nobody else has a GPU."""

from __future__ import annotations

import pytest

from gpubench import backends
from gpubench.measure import protocol, targets
from gpubench.result.run import Device

YIELDING, FIRST = next((name, known.yields_to[0]) for name, known in backends.KNOWN.items() if known.yields_to)


def device(backend, kind):
    return Device(
        id=f"{backend}:0", backend=backend, kind=kind, name=backend, api="host" if kind == "cpu" else "cuda"
    )


@pytest.fixture
def asked(monkeypatch):
    """Which requests the workers got; `gpus` says who has a GPU."""
    found, gpus = [], {}

    class Worker:
        next_id = 1

        def __init__(self, threads):
            pass

        def ask(self, request, deadline_s):
            found.append((request.backend, request.host_only))
            kinds = ["gpu"] if gpus.get(request.backend) and not request.host_only else []
            kinds += ["cpu"] if request.backend == YIELDING else []
            listing = protocol.Listing(request.backend, tuple(device(request.backend, kind) for kind in kinds))
            return protocol.Devices(id=1, listing=listing)

        def close(self):
            pass

    monkeypatch.setattr(targets, "Worker", Worker)
    return found, gpus


def test_only_cpus_are_asked_for_where_another_backend_has_the_gpu(asked):
    found, gpus = asked
    gpus.update({FIRST: True, YIELDING: True})
    listings = targets.list_devices([FIRST, YIELDING], yielding=True)
    assert sorted(found) == sorted([(FIRST, False), (YIELDING, True)])
    assert [[one.kind for one in listing.devices] for listing in listings] == [["gpu"], ["cpu"]]


def test_its_gpus_are_asked_for_where_nobody_else_has_one(asked):
    found, gpus = asked
    gpus.update({YIELDING: True})
    listings = targets.list_devices([FIRST, YIELDING], yielding=True)
    assert found[-1] == (YIELDING, False)
    assert [one.kind for one in listings[1].devices] == ["gpu", "cpu"]


@pytest.mark.parametrize(("names", "yielding"), [([YIELDING], True), ([FIRST, YIELDING], False)])
def test_who_is_asked_for_by_name_or_alone_is_asked_for_all(asked, names, yielding):
    found, _ = asked
    targets.list_devices(names, yielding=yielding)
    assert all(not host_only for _, host_only in found)

"""Asking a backend that yields for its GPUs may take seconds: it is asked for its CPUs, until nobody else has a GPU."""

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


@pytest.mark.parametrize(("names", "who_has_gpus", "yielding", "requests", "kinds"), [
    # It is asked for its CPUs where another backend has the GPU, and again where nobody has one.
    ([FIRST, YIELDING], [FIRST, YIELDING], True, [(FIRST, False), (YIELDING, True)], [["gpu"], ["cpu"]]),
    ([FIRST, YIELDING], [YIELDING], True, [(FIRST, False), (YIELDING, False), (YIELDING, True)], [[], ["gpu", "cpu"]]),
    # Who is asked for by name or alone is asked for all.
    ([YIELDING], [], True, [(YIELDING, False)], [["cpu"]]),
    ([FIRST, YIELDING], [], False, [(FIRST, False), (YIELDING, False)], [[], ["cpu"]]),
])  # fmt: skip
def test_a_backend_that_yields_is_asked_for_its_cpus(asked, names, who_has_gpus, yielding, requests, kinds):
    found, gpus = asked
    gpus.update(dict.fromkeys(who_has_gpus, True))
    listings = targets.list_devices(names, yielding=yielding)
    assert sorted(found) == sorted(requests)
    assert [[one.kind for one in listing.devices] for listing in listings] == kinds

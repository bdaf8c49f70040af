"""The slow GPU: named by its UUID and never by its place, judged by enough peers, and not by chance."""

import random

import msgspec
import pytest

from gpubench.curves.stats import FEWEST_PEERS, TOLERANCE, growing_k
from gpubench.fleet.survey import SEVERE, Figure, compare_gpus, figures
from tests.unit.fleet.fleets import node_run


def figure(gpu, *rates, case="matmul", reason=None, size=8192, driver="1", started="a") -> Figure:
    return Figure(
        node=f"node of {gpu}", gpu=gpu, device="cupy:0", started_at=started, bdf=None, case=case, group=case,
        driver=driver, size=size, rates=rates, reason=reason,
    )  # fmt: skip


def healthy(count: int, *, spread: float = 0.001, sessions: int = 2, case: str = "matmul") -> list[Figure]:
    return [figure(f"{i:03}", *[100 * (1 + spread * (i % 5 - 2))] * sessions, case=case) for i in range(count)]


def words(found: list[Figure], **options: object) -> dict[str, str]:
    return {one.gpu: one.word for one in compare_gpus(found, **options).verdicts}  # type: ignore[arg-type]


@pytest.mark.parametrize(("rates", "word"), [
    ((94.0, 94.0), "slow"), ((70.0, 70.0), "severe"), ((94.0, 99.0), None), ((80.0, 99.0), "suspect"),
    ((94.0,), "suspect"), ((96.0, 96.0), None),
])  # fmt: skip
def test_a_gpu_is_slow_when_two_sessions_say_so(rates, word):
    found = [figure("bad", 50.0, 50.0, started="0"), *healthy(7), figure("bad", *rates)]  # the newer one counts
    assert words(found) == words(found[::-1]) == ({"bad": word} if word else {})
    assert words([*healthy(8, spread=0), figure("bad", 94.9, 94.9)], tolerance=0.1) == {}


def test_what_failed_is_listed_and_never_compared():
    """Four GPUs without a result are not alike."""
    found = compare_gpus([figure(name, reason="failed: device lost") for name in "abcd"])
    assert (found.compared, found.groups, len(found.not_compared)) == (0, (), 4)
    assert all("device lost" in one.reason for one in found.not_compared)
    mixed = compare_gpus([*healthy(4), figure("000", reason="failed: wrong", case="copy")])
    assert [(one.gpu, one.reason) for one in mixed.not_compared] == [("000", "copy failed: wrong")]


def test_fewer_peers_than_a_verdict_takes_give_none():
    few = [*healthy(FEWEST_PEERS - 2), figure("bad", 50.0, 50.0)]
    found = compare_gpus(few)
    assert (found.verdicts, found.groups[0].threshold, found.groups[0].uneven) == ((), None, True)
    assert "verdict takes" in found.not_compared[0].reason
    assert words([*few, figure("one more", 100.0, 100.0)]) == {"bad": "severe"}
    found = compare_gpus([*healthy(5), figure("other", 20.0, 20.0, size=4096)])
    assert (found.verdicts, found.groups[0].peers) == ((), 5)
    assert found.not_compared[0].reason == "its peers measured another size"
    half = compare_gpus([*healthy(10), *(figure(f"s{i}", 70.0, 70.0) for i in range(7))])
    group = half.groups[0]
    assert (half.verdicts, group.uniform, group.uneven, group.suspects) == ((), False, True, 7)


def test_a_known_good_fleet_sees_one_that_is_slow_as_a_whole():
    good = healthy(8)
    now = [msgspec.structs.replace(one, rates=(90.0, 90.0), driver="2") for one in good[1:]]
    found = compare_gpus([*now, figure("new", 90.0, 90.0, driver="2")], known_good=good)
    assert {one.gpu for one in found.verdicts} == {one.gpu for one in good[1:]}
    assert all(one.known_good and one.word == "slow" for one in found.verdicts)
    assert (found.new, found.gone) == (("new",), ("000",))
    assert found.groups[0].known_good_change == pytest.approx(-0.1, abs=0.002)
    alone = compare_gpus(now)
    assert (alone.verdicts, alone.new, alone.gone) == ((), (), ())


def test_k_grows_with_the_number_of_looks():
    """3.9 at 256 GPUs and 4.66 at 8,000, four cases each."""
    assert growing_k(0) == growing_k(214) == 3.5
    assert growing_k(216) > 3.5
    assert [growing_k(256 * 4), growing_k(8_000 * 4)] == pytest.approx([3.90, 4.66], abs=0.01)


def test_chance_is_told_for_the_spread_that_was_measured():
    draw = random.Random(1)
    found = compare_gpus([figure(f"{i}", *[100 * (1 + 0.02 * draw.gauss(0, 1))] * 2) for i in range(200)])
    group = found.groups[0]
    assert (group.sigma, group.threshold) == (pytest.approx(0.02, rel=0.2), pytest.approx(3.5 * group.sigma))
    assert group.expected_by_chance == pytest.approx(200 * 2.33e-4, rel=0.1)
    assert compare_gpus(healthy(200, spread=0)).groups[0].expected_by_chance == 0


def test_figures_name_a_gpu_by_its_uuid():
    """A GPU that is lost moves those behind it in the list; nobody else's time becomes theirs."""
    whole = node_run("a", ["U0", "U1", "U2"], slow={"U2": 1 + 2 * SEVERE})
    for run in (whole, node_run("a", ["U0", "U2"], slow={"U2": 1 + 2 * SEVERE})):
        rates = {one.gpu: one.rate for one in figures(run, "a") if one.case.startswith("matmul")}
        assert rates["U2"] == pytest.approx(rates["U0"] / (1 + 2 * SEVERE), rel=TOLERANCE / 10)
    assert len({one.group for one in figures(whole, "a")}) == len({one.case for one in figures(whole, "a")})

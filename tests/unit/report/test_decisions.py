"""Decisions about runs in which much happens at once: every number of comparisons, advice, claims and speedups.

The runs are drawn by a seed and hold what decides somewhere: sessions that are missing, disturbed or throttled, cases that
failed, sizes where the sides change places. `python -m tests.unit.report.test_decisions` writes tests/golden/decisions.json
anew; look at the difference before committing it.
"""

import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.advice import answer as advice_of
from gpubench.analysis.analyse import analyse
from gpubench.analysis.answer import answer
from gpubench.analysis.claims import Claim, claims
from gpubench.analysis.contenders import Key
from gpubench.analysis.findings import findings
from gpubench.analysis.hybrid import hybrids, pipelines
from gpubench.analysis.policy import Policy
from gpubench.analysis.roofline import overheads, roofline
from gpubench.analysis.thresholds import amortizations
from gpubench.analysis.winners import evidence, ratio_map
from gpubench.compare.comparison import CompareOptions
from gpubench.compare.judge import find_steps
from gpubench.compare.two_runs import noise
from gpubench.result.case import QUEUED, WAITED, selector
from gpubench.result.run import Block, Parts
from tests.unit.report import answer_runs as runs
from tests.unit.report.builders import (
    CPU,
    GPU,
    HYBRID,
    QUIET,
    TORCH,
    case,
    failed,
    measured,
    run_of,
    skipped,
    split,
)
from tests.unit.report.samples import cpu_run, full_run, hybrid_run, interrupted_run, software_run
from tests.unit.report.sides import CASES, a_run, compared, pair

GOLDEN = Path(__file__).parents[2] / "golden" / "decisions.json"
ALWAYS, ONCE = "transfer-always", "transfer-once"
CUDA2 = replace(GPU, id="cupy:1")
SOFTWARE = replace(GPU, id="wgpu:0", backend="wgpu", kind="software")


def plain(value):
    """A struct as what differs from its defaults, without what no document shows; floats by six digits."""
    if isinstance(value, msgspec.Struct):
        aside = getattr(type(value), "aside", ())
        fields = [field for field in msgspec.structs.fields(value) if field.name not in aside]
        shown = {field.name: plain(getattr(value, field.name)) for field in fields}
        return {name: item for name, item in shown.items() if item not in (None, [], {}, False)}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


# ---------------------------------------------------------------- comparisons
def draw_sides(seed, k, sigma, *, lacks=0.3):
    """Base and new of eleven cases on two devices; sessions, blocks, clocks and conditions differ by chance."""
    chance = random.Random(seed)
    what = [
        case(op, n, device=device)
        for device in ("numpy:0", "cupy:0")
        for op, n in (("add", 64), ("add", 128), ("relu", 64), ("matmul", 32))
    ]
    what += [case("mul", n) for n in (1, 2, 3)]
    sides = []
    for second in (0, 1):
        rows = []
        for workload in what:
            factor = chance.choice((1.0, 1.0, 1.03, 1.3, 0.75, 4.0)) if second else 1.0
            absent = chance.randrange(k) if chance.random() < lacks and k > 1 else None
            blocks = [
                Block(
                    session=i, round=r, position=0, repeat=10_000, clock_hz=[2e9 * (1 if chance.random() < 0.5 else 0.8)],
                    discarded={"0": "throttled"} if chance.random() < 0.02 else {},
                    wall_s=[level * f * (1.6 if chance.random() < 0.05 else 1) for f in QUIET[: chance.randint(6, 10)]],
                )
                for i in range(k)
                for level in [1e-3 * factor * math.exp(chance.gauss(0, sigma))]
                for r in range(chance.randint(1, 2))
                if i != absent
            ]  # fmt: skip
            digest = chance.choice(("a", "a", "b"))
            rows.append(replace(measured(workload, 1.0, sessions=k), blocks=blocks, kernel_hash=digest))
        if second:
            rows[3] = failed(rows[3].case)
            rows[8] = replace(rows[8], op_hash="f" * 12)
            del rows[10]
        else:
            rows[9] = skipped(rows[9].case, "budget")
        run = a_run(rows, k, second=second)
        sessions = [replace(s, foreign_cpu_share=0.2 if chance.random() < 0.1 else 0.01) for s in run.sessions]
        selection = replace(run.selection, sizes={"add": [64, 128], "relu": [64], "matmul": [32]})
        sides.append(replace(run, sessions=sessions, selection=selection))
    return sides


def comparison(seed, k, sigma, options=None, **more):
    base, new = draw_sides(seed, k, sigma, **more)
    result = compared(base, new, options, draw_sides(seed + 100, k, sigma)[1])
    parts = ("pairs", "differences", "cases", "missing", "failed", "added", "gates", "exit_code", "exit_reason")
    return {
        **{name: plain(getattr(result, name)) for name in parts}, "counts": plain(result.counts),
        "warnings": [notice.code for notice in result.warnings],
    }  # fmt: skip


def of_noise(seed, k, sessions, sigma):
    result = plain(noise(draw_sides(seed, k, sigma)[0], sessions, 0.1))
    return {name: value for name, value in result.items() if name != "fingerprint"}


def steps(seed, places, count, sigma=0.02):
    """The steps in histories, of which each case has some at its places; in those of an even number a run is missing."""
    chance = random.Random(seed)
    histories = {
        f"c{i}": [
            None if j == 2 and len(own) == 2 else math.exp(chance.gauss(0, sigma)) * 1.4 ** sum(j >= place for place in own)
            for j in range(count)
        ]
        for i, own in enumerate(places)
    }  # fmt: skip
    return {name: [plain(list(step)) for step in result] for name, result in find_steps(histories, 0.1).items()}


# ---------------------------------------------------------------- one run
def crossing(seed, *, sessions=4, sigma=0.03):
    """Three CPU codes and three GPUs over six sizes in every regime; some have no room, failed or were throttled."""
    chance = random.Random(seed)
    rows, sizes = [], (64, 128, 256, 512, 1024, 4096)

    def add(what, seconds, **more):
        shifts = [math.exp(chance.gauss(0, sigma)) for _ in range(sessions)]
        rows.append(measured(what, seconds, sessions=sessions, shifts=shifts, **more))

    for n in sizes:
        work_s = (n / 256) ** 2
        add(case(n=n), 1e-4 * work_s + 1e-6)
        add(case(n=n, implementation="tuned"), 0.9e-4 * work_s + 4e-6)
        if n > 64:
            add(case(n=n, device="torch:cpu"), 0.8e-4 * work_s + 2e-5)
        for device, fixed_s, slope in (("cupy:0", 2e-5, 6e-6), ("cupy:1", 4e-5, 4e-6)):
            if n == 4096 and device == "cupy:1":
                rows.append(skipped(case(n=n, device=device)))
                rows.append(skipped(case(n=n, device=device, regime=ALWAYS)))
                continue
            queued_s = fixed_s / 4 + slope * work_s
            parts = Parts(
                session=0, compile_s=0.3, first_launch_s=2e-3, alloc_s=[2e-6], upload_s=[3e-5 * work_s], launch_s=[4e-6],
                sync_s=[5e-6], single_s=[queued_s + 9e-6], download_s=[1e-5 * work_s],
                result_s=[queued_s + 2e-5 * work_s] if device == "cupy:1" else [],
            )  # fmt: skip
            add(case(n=n, device=device), queued_s, cold_s=queued_s * 0.9)
            add(case(n=n, device=device, regime=WAITED), fixed_s + slope * work_s, parts=parts)
            add(case(n=n, device=device, regime=ONCE), queued_s + 4e-6 * work_s)
            add(case(n=n, device=device, regime=ALWAYS), 2 * fixed_s + (slope + 4e-5) * work_s, parts=parts)
        add(case(n=n, device="wgpu:0", regime=ALWAYS), 3e-4 * work_s)
    add(replace(case(n=1024, device="cupy:0", regime=ONCE), calls=100), 4e-5)
    rows.append(failed(case(n=8192, device="cupy:0")))
    for n, gain in ((1024, 1.3), (4096, 1.02)):
        alone = 1e-4 * (n / 256) ** 2, 2e-5 + 6e-6 * (n / 256) ** 2
        what = case(n=n, implementation="tuned", regime=WAITED, device="hybrid:cupy:0")
        rows.append(split(what, alone, alone[1] / gain, sessions=sessions))
    every = {str(i): "throttled" for i in range(11)}
    rows[4] = replace(rows[4], blocks=[replace(block, discarded=every) for block in rows[4].blocks])
    rows[7] = replace(rows[7], blocks=rows[7].blocks[1:])
    return run_of(rows, devices=(CPU, TORCH, GPU, CUDA2, HYBRID, SOFTWARE), sessions=sessions)


def values(struct):
    """A struct without the names of its fields."""
    return [item for item in plain(struct).values() if not isinstance(item, dict)]


def advise(run, regime):
    """Advice and the short answer at measured sizes, between them, at their ends and beyond."""
    result, policy = {}, Policy([run])
    for n in (63, 64, 100, 700, 1024, 2000, 4096):
        advice = advice_of([run], Key("matmul", "float32"), n, regime)
        short = policy.choose("matmul", n, regime=regime, hybrid=n % 2 == 0)
        parts = (advice.time, advice.gain, advice.split, short)
        names = ("device_id", "implementation", "time", "case_ids", "libraries", "threads", "reason")
        places = [[plain(getattr(place, name)) for name in names] for place in advice.candidates]
        result[str(n)] = [
            advice.basis, advice.confidence, advice.command, short.why, *map(plain, parts), *places,
        ]  # fmt: skip
    return result


CLAIMS = [
    Claim(claim=str(i), cases=cases, **more)
    for i, (cases, more) in enumerate((
        *(((f"matmul/n={n}@cupy",), {"speedup": x}) for n in (64, 512, 4096) for x in (0.5, 1.5, 10.0)),
        (("matmul/n=512/*/*/resident-waited@cupy", "matmul/n=1024/*/*/resident-waited@cupy"), {"speedup": 9.0, "also": "matmul/n=256@cupy"}),
        (("matmul/n=512@cupy:0",), {"gpu_s": 3e-5}), (("matmul/n=512@cupy:0",), {"gpu_s": 4e-5, "cpu_s": 4e-4}),
        (("matmul/n=512@numpy",), {"cpu_s": 3e-4}), (("matmul/n=512@numpy",), {"cpu_s": 4e-4}),
        (("matmul/n=512@cupy",), {"time_s": (1e-5, 4e-5)}), (("matmul/n=512@cupy",), {"time_s": (1e-5, 2e-5)}),
        *(((f"matmul/*/*/*/{regime}@cupy",), {"break_even": ends}) for regime in (QUEUED, WAITED, ALWAYS) for ends in ((50, 200), (1, 5000), (3000, 4000))),
        (("matmul/*/*/*/transfer-always@wgpu",), {"break_even": (2000, 4000), "device": "software"}),
        (("matmul/n=1024@hybrid:*",), {"speedup": 1.2, "against": "gpu"}),
        (("matmul/n=512/*/*/resident-waited@cupy:0",), {"speedup": 0.5, "against": "matmul/*/*/*/resident-queued@cupy:0"}),
        (("matmul/n=512@cupy", "relu"), {"speedup": 1.0}),
    ))
]  # fmt: skip


def crossing_once():
    return crossing(5, sessions=1, sigma=0.1)


def gpu_alone():
    """A run of its GPUs alone, at the sizes that were asked for of one op."""
    run = crossing(6)
    rows = [row for row in run.outcomes if row.case.backend not in ("numpy", "torch")]
    selection = replace(run.selection, sizes={"relu": [64]})
    return replace(
        run, outcomes=[*rows, measured(case("relu", 64, device="cupy:0"), 1e-5)], selection=selection
    )


def asked():
    """Without a GPU, and with sizes that were asked for of one op."""
    return replace(cpu_run(), selection=replace(cpu_run().selection, sizes={"relu": [65536]}))


def absent():
    """No time of a GPU, for reasons of several ranks, and code of a CPU without plain NumPy beside it."""
    codes = (("add", "tuned", 1e-3), ("mul", "library", 1e-3), ("mul", "tuned", 5e-4))
    cpu = [measured(case(op, n, implementation), s) for n in (1024, 2**20) for op, implementation, s in codes]
    lacks = {
        "sub@cupy:0": "no-dtype",
        "add@cupy:0": "out-of-memory",
        "mul@cupy:0": "no-implementation",
        "mul@wgpu:0": "no-transfer",
    }
    rows = [skipped(case(place[:3], 1024, device=place[4:]), why, why) for place, why in lacks.items()]
    return runs.answer_run([*cpu, *rows], devices=(CPU, GPU, runs.WEBGPU))


def on_host():
    """Beside ops on both sides one that no GPU can run, at two sizes."""
    rows = [measured(runs.op_case("gelu", n), 1e-6 * n, sessions=5) for n in (1000, 2000)]
    rows.append(measured(runs.op_case("gelu", 2000, device="torch:cpu"), 1e-4))
    return runs.answer_run([*runs.BOTH, *runs.HOST, *rows], devices=(CPU, TORCH, GPU))


def ranks():
    """Ops whose order by the size from which the GPU pays is neither that of their gains nor that of their names."""
    one, low, top = runs.rising(runs.VECTOR, 9_000, 0.2), {1024: 0.1, 4096: 0.3}, 2**24
    return runs.ops({4096: 2.0, top: 3.0}, {1024: 1.5, top: 2.0}, runs.rising(runs.VECTOR, 200_000), one, {1024: 0.5, top: 1.0}, {1024: 0.4, top: 1.05},
                    low, dict.fromkeys(runs.ENDS, 0.5), dict.fromkeys(runs.ENDS, 0.2), {1024: 0.1, 4096: 0.6})  # fmt: skip


def even():
    """One op of three that the GPU wins by little."""
    return runs.ops({1024: 1.3}, {1024: 1.0}, {1024: 1.0})


def compiled():
    """A user's function, whose compiled code is the fastest on both sides."""
    tuned = {("numpy:0", "tuned"): runs.seconds(1e-6, 1e-9), ("cupy:0", "tuned"): runs.seconds(2e-5, 1e-10)}
    return runs.function_run(runs.WRITTEN | tuned)


def twins():
    """Queued calls alone, on two GPUs of one model: of some ops as fast, of others not, and without a time."""
    ratios = {
        "sub": (runs.rising(runs.VECTOR, 23_000),) * 2, "add": (runs.WINS, runs.WINS), "mul": (runs.WINS, dict.fromkeys(runs.WINS, 20.0)), "dot": (runs.OPEN_LOSS, {1024: 0.1, 2048: 0.2}),
        "relu": (runs.rising(runs.VECTOR, 20_000), runs.rising(runs.VECTOR, 200_000)), "gelu": (runs.OPEN_LOSS, runs.OPEN_LOSS), "tanh": ({1024: 0.5, 2**24: 8.0}, {1024: 0.5, 2**20: 1.0, 2**24: 8.0}),
        "exp": ({1024: 0.5, 2**24: 1.0},) * 2,
    }  # fmt: skip
    places = ("cupy:1", "wgpu:0", "cupy:0")
    rows = [row for i, device in enumerate(places) for op, both in ratios.items() if i != 1 or op in ("add", "exp")
            for row in runs.op_rows(op, {QUEUED: both[i // 2]}, device=device, cpu=not i)]  # fmt: skip
    rows += [failed(case("div", 1024, device=device)) for device in places]
    rows += [failed(case(op, 1024, device="cupy:1")) for op in ("mine.f", "saxpy")]
    rows.append(skipped(case("copy", 1024, device="cupy:0"), "no-implementation"))
    gpus = (replace(GPU, gpu_id="a"), replace(runs.SECOND, gpu_id="b"), runs.WEBGPU)
    return runs.answer_run(rows, devices=(CPU, *gpus))


def judge_claims(run):
    return [plain(result) for result in claims(analyse(run, claims=CLAIMS))]


def compare_devices(run, *, cases=False, **more):
    result = analyse(run, **more)
    names = ("id", "label", "findings", "time", "single_s", "rates", "time_breakdown")
    shown = [[getattr(case, name) for name in names] for case in result.everything if case.n > 256]
    return [
        result.baseline, *map(values, (*result.speedups, *result.break_even)), *(plain(shown) if cases else ()),
    ]  # fmt: skip


def derive(make):
    """What one run says of everything but speedups and break-evens."""
    found = analyse(make())
    nouns = (roofline, overheads, amortizations, hybrids, pipelines, evidence, ratio_map, findings)
    screen = answer(found, by_device=True), answer(found, thresholds=False)
    return plain([*(noun(found) for noun in nouns), *screen, screen[0].queued_gain, screen[0].regimes])


IGNORED = CompareOptions(
    ignored=(selector("relu"),), fail_on=("slower", "unsure", "failed", "missing", "noisy")
)
RAISED = CompareOptions(thresholds=((selector("add"), 0.2),), alpha=0.1, insist=True)
RUNS = {
    **{f"comparison {seed} of {k} sessions": (lambda seed=seed, k=k, sigma=sigma, options=options: comparison(seed, k, sigma, options))
       for seed, k, sigma, options in ((1, 1, 0.02, None), (2, 3, 0.05, IGNORED), (3, 5, 0.01, None), (4, 6, 0.04, RAISED), (5, 8, 0.02, IGNORED))},
    "comparison of one case": lambda: plain(compared(*pair(cases=CASES[:1])).cases),
    "comparison of 1 and 2 sessions": lambda: plain(compared(pair(k=1)[0], pair(k=2)[1]).cases),
    **{f"noise {seed}": (lambda seed=seed, k=k, sigma=sigma: of_noise(seed, k, 5, sigma)) for seed, k, sigma in ((1, 10, 0.01), (2, 13, 0.08))},
    **{f"steps in {count} runs": (lambda places=places, count=count: steps(count, places, count))
       for places, count in (([[3]], 6), ([[3]], 7), ([[4], [5]], 9), ([[4], []], 8), ([[4, 9], [7], [7, 8]], 14), ([[3, 8, 20], [17], [9, 22]], 25))},
    **{f"advice {regime}": (lambda regime=regime: advise(crossing(1), regime)) for regime in (QUEUED, WAITED, ALWAYS, "transfer-once-3")},
    "claims": lambda: judge_claims(crossing(2)), "claims, one session": lambda: judge_claims(crossing(3, sessions=1, sigma=0.1)),
    "speedups": lambda: compare_devices(crossing(2), cases=True), "speedups, wild": lambda: compare_devices(crossing(4, sessions=1, sigma=0.3)),
    **{f"derived from {make.__name__}": (lambda make=make: derive(make)) for make in (crossing_once, full_run, hybrid_run, cpu_run, software_run, interrupted_run, runs.one_op_run, gpu_alone, asked, absent, on_host, compiled, twins, ranks, even)},
    "speedups over a GPU": lambda: compare_devices(crossing(2), baseline="cupy:0"),
}  # fmt: skip


def leaves(value, place=""):
    """Each number and word with its place; a number that is not finite is a word."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inside = {at: leaf for name, item in items for at, leaf in leaves(item, f"{place}/{name}").items()}
        return inside or {place: None}
    return {place: value}


@pytest.mark.parametrize("name", RUNS)
def test_every_number_is_that_of_the_golden_file(name):
    result, stored = leaves(RUNS[name]()), leaves(json.loads(GOLDEN.read_text(encoding="utf-8"))[name])
    assert list(result) == list(stored)
    for place, value in result.items():
        near = isinstance(value, float)
        assert value == (pytest.approx(stored[place], rel=3e-5, abs=1e-12) if near else stored[place]), place


def write():
    rows = [f"{json.dumps(name)}: {json.dumps(make())}" for name, make in RUNS.items()]
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()

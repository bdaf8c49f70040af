"""Claims: the file, the verdicts, and the table that sets them beside measured speedups."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpubench.analysis import claims as claims_room
from gpubench.analysis.claims import Claim, claims
from gpubench.base.errors import InputError
from gpubench.report import analyse_runs, draw_report
from gpubench.report.layout import RenderOptions
from tests.unit.report.builders import CPU, GPU, SOFTWARE, case, curve, measured, run_of, skipped
from tests.unit.report.samples import NOISY

MATMUL = "matmul/n=1k/float32/*/resident"
ALWAYS = "transfer-always"
FORTY = curve({1024: 40.0})
SOFT = {"devices": (CPU, SOFTWARE)}
NOT_MEASURED = "not measured"
QUEUED_GPU = "matmul/n=1024/float32/library/resident-queued@cupy:0"


def claimed(cases=(MATMUL,), **fields):
    return Claim(claim="m", cases=cases, **fields)


def verdict(claim, outcomes, **more):
    (analysis,) = analyse_runs([run_of(outcomes, **more)], claims=[claim])
    return claims(analysis)[0]


RISING = {256: 0.4, 512: 0.75, 1024: 1.5, 2048: 3.0}
SPLIT = replace(GPU, id="hybrid:cupy:0", backend="hybrid", kind="hybrid")
EVERY = dict.fromkeys(map(str, range(1, 11)), "throttled")
THROTTLED = measured(case(device="cupy:0"), 1e-3 / 40, discarded=EVERY, stop="max-samples")
WILD = tuple(factor**8 for factor in NOISY)


@pytest.mark.parametrize(("said", "claim", "outcomes", "more"), [
    # A claim stands from nine tenths of it on; inside the interval it is undecided.
    *((said, claimed(speedup=x), FORTY, {}) for x, said in (
        (40, "confirmed"), (44.5, "refuted"))),
    ("undecided", claimed(speedup=44.4), curve({1024: 40.0}, sessions=3), {}),
    # Two times claim their ratio, and one claims itself.
    ("refuted", claimed(cpu_s=0.1, gpu_s=0.0005), FORTY, {}), ("confirmed", claimed(gpu_s=1e-4), FORTY, {}), ("refuted", claimed(gpu_s=1e-5), FORTY, {}),
    *((said, claimed(("matmul",), cpu_s=s), [measured(case(), 1e-3)], {}) for s, said in ((2e-3, "confirmed"), (5e-4, "refuted"))),
    *((said, claimed(("matmul",), device="software", time_s=ends), curve({1024: 0.5}, cpu_s=5e-4, device="wgpu:0"), SOFT)
      for ends, said in (((9e-4, 11e-4), "confirmed"), ((1.3e-3, 2e-3), "refuted"), ((1e-4, 5e-4), "refuted"))),
    (NOT_MEASURED, claimed(("matmul",), time_s=(9e-4, 11e-4)), curve({1024: 0.5}, device="wgpu:0"), SOFT),
    *((said, claimed(device="software", **what), curve({1024: 0.5}, cpu_s=5e-4, device="wgpu:0"), SOFT)
      for what, said in (({"speedup": 1.78}, "refuted"), ({"speedup": 0.2}, "confirmed"), ({"gpu_s": 2e-3}, "confirmed"), ({"gpu_s": 5e-4}, "refuted"))),
    # A break-even between two sizes
    *((said, claimed(("matmul",), break_even=ends, tolerance=0, device=kind), curve(ratios, device=device), {"devices": (CPU, gpu)})
      for device, gpu, kind in (("cupy:0", GPU, None), ("wgpu:0", SOFTWARE, "software"))
      for ends, ratios, said in (
          ((500, 1100), RISING, "confirmed"), ((2000, 4000), RISING, "refuted"), ((100, 400), RISING, "refuted"),
          ((300, 700), {512: 2.0, 1024: 3.0}, "undecided"), ((0.5, 1.2), {512: 2.0, 1024: 3.0}, "undecided"), ((1, 512), {512: 2.0, 1024: 3.0}, "confirmed"), ((600, 700), {512: 2.0, 1024: 3.0}, "refuted"),
          ((2000, 4000), {512: 0.3, 1024: 0.4}, "undecided"), ((300, 700), {512: 0.3, 1024: 0.4}, "refuted"))),
    ("undecided", claimed(("matmul",), break_even=(1500, 1600)), [*curve({512: 0.3, 2048: 0.4}), *curve({512: 0.3, 1024: 0.4}, device="cupy:1")[1:]], {"devices": (CPU, GPU, replace(GPU, id="cupy:1"))}),
    # A split answers only a claim that names it; what was not measured is neither confirmed nor refuted.
    (NOT_MEASURED, claimed(speedup=30), curve({1024: 40.0}, device="hybrid:cupy:0"), {"devices": (CPU, SPLIT)}),
    ("confirmed", claimed((f"{MATMUL}@hybrid:*",), speedup=30), curve({1024: 40.0}, device="hybrid:cupy:0"), {"devices": (CPU, SPLIT)}),
    (NOT_MEASURED, claimed((), speedup=2), FORTY, {}), (NOT_MEASURED, claimed(("relu",), speedup=2), FORTY, {}),
    # An unstable case decides by its interval, and a throttled one nothing.
    *((said, claimed(speedup=x), curve({1024: 40.0}, factors=WILD), {}) for x, said in ((44, "confirmed"), (1000, "refuted"), (2, "confirmed"))),
    *(("undecided", claimed(**what), [FORTY[0], THROTTLED], {}) for what in ({"speedup": 1000}, {"time_s": (1e-6, 1e-3)})), (NOT_MEASURED, claimed(speedup=2), curve({1024: 40.0}, device="wgpu:0"), SOFT),
])  # fmt: skip
def test_verdicts(said, claim, outcomes, more):
    found = verdict(claim, outcomes, **more)
    assert found.verdict == said
    assert claim.break_even is None or found.break_even is not None
    assert THROTTLED not in outcomes or found.reason == "throttled"
    no_gpu = said == NOT_MEASURED and more is SOFT and claim.speedup is not None
    assert not no_gpu or found.reason == "a software adapter is no GPU"


def test_a_stage_that_stays_on_the_host_takes_its_time_on_both_sides():
    host, gone = case("relu", 64), case("relu", 64, device="cupy:0")
    rows = [*FORTY, measured(host, 1e-3), skipped(gone, "host-stage", "runs on the host alone")]
    found = verdict(claimed((MATMUL, "relu"), speedup=2), rows)
    assert found.ids == (QUEUED_GPU, host.id)
    assert found.ratio == pytest.approx(2e-3 / (1e-3 / 40 + 1e-3))
    assert found.measured.case.device_kind == "gpu", "the table says GPU"
    assert verdict(claimed(("relu",), speedup=0.5), rows).measured.headline


def test_of_several_files_the_first_that_measures_a_claim_answers_it():
    runs = [run_of([measured(case(op), 1e-3)]) for op in ("mul", "add")]
    said = {"add": {"cpu_s": 1e-3}, "mul": {"cpu_s": 1e-3}, "sum": {"break_even": (1, 2e6)}}
    asked = [Claim(claim=name, cases=(name,), **numbers) for name, numbers in said.items()]
    text = draw_report(analyse_runs(runs, claims=asked), "plain", RenderOptions(sections=["claims"]))
    rows = [line.split() for line in text.splitlines() if line.startswith((*said,))]
    assert [(row[0], *({"A", "B"} & {*row})) for row in rows] == [("add", "B"), ("mul", "A"), ("sum",)]
    assert all(words in text for words in ("Claims: 2 confirmed, 1 not measured", "up to 2 million"))
    assert all(claim.cases and claim.document for claim in claims_room.load("builtin"))


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_of_claims(tmp_path, suffix):
    path = tmp_path / f"mine.{suffix}"
    entry = {"claim": "ours", "case": "matmul/n=1024", "gpu": "2 ms", "tolerance": 0.2}
    toml = "[[claims]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    path.write_text(toml if suffix == "toml" else json.dumps({"claims": [entry]}))
    (claim,) = claims_room.load(str(path))
    path.write_text("[[claims]]\nclaim = 'a'\ncase = 'add'\nbreak_even = [5, 5]") if suffix == "toml" else None
    assert claims_room.load(str(path))
    assert claim == Claim(claim="ours", cases=("matmul/n=1024",), gpu_s=2e-3, tolerance=0.2)


@pytest.mark.parametrize(("text", "why"), [
    ("claims = 3", "Expected `array`"), ("x = = 3", "Invalid value"), ("[[claims]]\nspeedup = 2", "claim"), ("spedup = 2", "spedup"),
    ("", "it expects nothing"), ("speedup = 2\ntime = [1, 2]", "two things"), ('time = ["2 s", "1 s"]', "a smaller number"),
    ('speedup = 2\ncase = "add"\ncases = ["add"]', "not both"), ('cpu = 2\ncases = ["add", "mul"]', "several cases"),
    ('gpu = 2\nagainst = "gpu"', "against needs the speedup"), ('speedup = 2\nalso = "add/4096"', "no size"), ("speedup = -2", "above 0"),
    ("speedup = inf", "above 0"), ('gpu = "2 parsec"', "not a duration"), ("cpu = true", "not a duration"), ('speedup = 2\ncase = "matmul/4096"', "no size"),
    *((f"speedup = 2\ntolerance = {share}", "tolerance is a share") for share in (1.5, 1, -0.1)), ("speedup = 0", "above 0"),
    ("break_even = [0, 5]", "a smaller number"), ("break_even = [5, inf]", "a smaller number"), ("break_even = [1, 2]\ntime = [1, 2]", "two things"),
    ('speedup = 2\nagainst = "add/4096"', "no size"), ('speedup = 2\nbreak_even = [1, 2]', "two things"),
    ('cpu = 2\ngpu = 1\nagainst = "gpu"', "against needs the speedup"), ('break_even = [1, 2]\ncases = ["add", "mul"]', "several cases"),
    ('name = "other"\nclaims = []', "it is other version 1"), ("schema_version = 2\nclaims = []", "reads gpubench-claims version 1"),
])  # fmt: skip
def test_mistakes_in_a_file(tmp_path, text, why):
    path = tmp_path / "mine.toml"
    whole = any(word in text for word in ("claims", "x = ="))
    path.write_text(text if whole else f'[[claims]]\nclaim = "a"\n{text}')
    with pytest.raises(InputError) as caught:
        claims_room.load(str(path))
    assert (why in caught.value.why, "docs/claims.md" in caught.value.hint) == (True, True)
    path.write_text(f'[[claims]]\nclaim = "{"x" * 39}yz"\n')
    with pytest.raises(InputError, match=f"the claim '{'x' * 39}y'"):
        claims_room.load(str(path))
    with pytest.raises(InputError, match="cannot be read") as caught:
        claims_room.load("nowhere.toml")
    assert caught.value.why == "there is no such file"


def test_the_example_of_the_documents_is_a_file_of_claims(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "claims.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "ours.toml"
    path.write_text(example, encoding="utf-8")
    (found,) = claims_room.load(str(path))
    assert (found.speedup, found.cpu_s, found.gpu_s, found.tolerance) == pytest.approx((20, 2e-3, 1e-4, 0.25))


def test_a_claim_against_other_cases_takes_those_of_its_device():
    tiled, naive = (case(device="cupy:0", implementation="tuned", variant=v) for v in ("tiled", "naive"))
    slow = replace(naive, device_id="wgpu:0")
    rows = [measured(case(), 1e-3), measured(tiled, 1e-4), measured(naive, 4e-4), measured(slow, 9e-4)]
    rows.append(measured(case(device="cupy:0", regime=ALWAYS), 3e-4))
    claim = claimed(("matmul/*/*/tuned-tiled",), against="matmul/*/*/tuned-naive", speedup=2)
    found = verdict(claim, rows)
    assert (found.ratio, found.ratio_with_copies) == (pytest.approx(4), None)
    # The fastest of them, which a slower one of another op or size does not flatter.
    rows += [measured(case("add", n, device="cupy:0"), s) for n, s in ((64, 2e-4), (2**20, 5e-2))]
    assert verdict(replace(claim, against="add"), rows).ratio == pytest.approx(2)
    assert verdict(replace(claim, against="matmul/*/*/tuned*"), rows).ratio == pytest.approx(4)

"""Claims: the file, the verdicts, and the table that sets them beside measured speedups."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.analysis import claims as claims_room
from gpubench.analysis.claims import Claim, claims
from gpubench.base.errors import InputError
from gpubench.report import analyse_runs, draw_report
from gpubench.report.document import ReportDocument
from gpubench.report.layout import RenderOptions
from gpubench.result.case import QUEUED, WAITED
from tests.unit.report.builders import CPU, GPU, HYBRID, SOFTWARE, case, curve, measured, run_of, skipped
from tests.unit.report.samples import NOISY

MATMUL = "matmul/n=1k/float32/*/resident"


def verdict(claim, outcomes, **more):
    (analysis,) = analyse_runs([run_of(outcomes, **more)], claims=[claim])
    return claims(analysis)[0]


@pytest.mark.parametrize(
    ("claimed", "said"),
    [(30, "confirmed"), (40, "confirmed"), (44.5, "refuted"), (50, "refuted"), (200, "refuted")],
)
def test_a_claim_stands_from_nine_tenths_of_it_on(claimed, said):
    found = verdict(Claim(claim="matmul", cases=(MATMUL,), speedup=claimed), curve({1024: 40.0}))
    assert found.verdict == said
    assert found.measured.ratio == pytest.approx(40)


def test_a_claim_inside_the_interval_is_undecided():
    few = curve({1024: 40.0}, sessions=3)
    assert verdict(Claim(claim="matmul", cases=(MATMUL,), speedup=44.4), few).verdict == "undecided"


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4), st.floats(0, 0.99))
def test_a_verdict_follows_its_interval(claimed, ratio, tolerance):
    found = verdict(
        Claim(claim="m", cases=(MATMUL,), speedup=claimed, tolerance=tolerance), curve({1024: ratio})
    )
    bound, interval = claimed * (1 - tolerance), found.measured.interval
    expected = "confirmed" if interval.low >= bound else "refuted" if interval.high < bound else "undecided"
    assert found.verdict == expected


def test_two_times_claim_their_ratio_and_one_claims_itself():
    curve_of_40 = curve({1024: 40.0}, cpu_s=1e-3)
    assert verdict(Claim(claim="m", cases=(MATMUL,), cpu_s=0.1, gpu_s=0.0005), curve_of_40).verdict == "refuted"
    assert verdict(Claim(claim="m", cases=(MATMUL,), gpu_s=1e-4), curve_of_40).verdict == "confirmed"
    assert verdict(Claim(claim="m", cases=(MATMUL,), gpu_s=1e-5), curve_of_40).verdict == "refuted"


def test_the_kindest_case_answers_and_copies_stand_beside_it():
    outcomes = [
        *curve({1024: 40.0}, regime="transfer-always"),
        measured(case(device="wgpu:0"), 1e-5), measured(case(device="cupy:0"), 1e-4),
    ]  # fmt: skip
    found = verdict(Claim(claim="m", cases=(MATMUL,), speedup=90), outcomes)
    assert (found.measured.case.case.device_id, found.verdict) == ("wgpu:0", "confirmed")
    assert found.with_copies.ratio == pytest.approx(40)


def test_a_claim_about_data_that_stays_takes_the_kinder_of_waited_and_queued_calls():
    kinds = {"resident-waited": 4e-4, "resident-queued": 1e-4, "transfer-always": 5e-5}
    rows = [measured(case(regime=name, device="cupy:0"), s) for name, s in kinds.items()]
    claim = Claim(claim="5x", cases=("matmul/*/*/*/resident",), speedup=5)
    found = verdict(claim, [measured(case(), 1e-3), *rows])
    assert found.verdict == "confirmed"
    assert found.ids == ("matmul/n=1024/float32/library/resident-queued@cupy:0",)


def test_the_times_of_several_cases_add_up():
    sizes = {512: 2.0, 1024: 8.0}
    claim = Claim(claim="both", cases=("matmul/n=512/*/*/resident", "matmul/n=1k/*/*/resident"), speedup=2.5)
    found = verdict(claim, curve(sizes, cpu_s=1e-3, sessions=3))
    assert (found.verdict, len(found.ids), len(found.baseline_ids)) == ("confirmed", 2, 2)
    assert found.cpu_s == pytest.approx(2e-3)
    assert found.gpu_s == pytest.approx(1e-3 / 2 + 1e-3 / 8)
    assert found.ratio == pytest.approx(found.cpu_s / found.gpu_s)
    assert found.measured.lo < found.ratio < found.measured.hi
    missing = msgspec.structs.replace(claim, cases=(*claim.cases, "relu"))
    assert verdict(missing, curve(sizes)).verdict == "not measured"


def test_a_stage_that_stays_on_the_host_takes_its_time_on_both_sides():
    host = case("relu", 64)
    outcomes = [
        *curve({1024: 40.0}, cpu_s=1e-3), measured(host, 1e-3),
        skipped(case("relu", 64, device="cupy:0"), "host-stage", "runs on the host alone"),
    ]  # fmt: skip
    found = verdict(Claim(claim="both", cases=(MATMUL, "relu"), speedup=2), outcomes)
    assert found.ids == ("matmul/n=1024/float32/library/resident-queued@cupy:0", host.id)
    assert found.ratio == pytest.approx(2e-3 / (1e-3 / 40 + 1e-3))
    assert found.measured.case.device_kind == "gpu", "the table says GPU"


def test_what_stands_beside_a_claim_decides_nothing():
    claim = Claim(claim="m", cases=(MATMUL,), also="matmul/n=512", speedup=30)
    outcomes = curve({512: 2.0, 1024: 40.0})
    found = verdict(claim, outcomes)
    assert (found.verdict, found.also_ratio) == ("confirmed", pytest.approx(2))
    assert "  matmul n=512" in draw_report(
        analyse_runs([run_of(outcomes)], claims=[claim]), "plain", RenderOptions(sections=["claims"])
    )


def test_a_claim_may_be_held_against_the_gpu_alone():
    regime = "transfer-always"
    outcomes = [
        measured(case(), 1e-3), measured(case(device="cupy:0", regime=regime), 2e-4),
        measured(case(device="hybrid:cupy:0", regime=regime), 4e-4),
    ]  # fmt: skip
    claim = Claim(claim="split", cases=("matmul/*/*/*/*@hybrid:*",), against="gpu", speedup=0.4)
    found = verdict(claim, outcomes, devices=(CPU, GPU, HYBRID))
    assert (found.verdict, found.ratio) == ("confirmed", pytest.approx(0.5))


def test_a_claim_may_be_held_against_other_cases_of_the_device():
    """Of one op at the same size alone; of another op at any."""
    tiled, naive = (
        msgspec.structs.replace(case(device="cupy:0", implementation="tuned"), variant=v)
        for v in ("tiled", "naive")
    )
    elsewhere = msgspec.structs.replace(naive, device_id="wgpu:0")
    rows = [measured(case(), 1e-3), measured(tiled, 1e-4), measured(naive, 4e-4), measured(elsewhere, 9e-4)]
    claim = Claim(
        claim="shared memory", cases=("matmul/*/*/tuned-tiled",), against="matmul/*/*/tuned-naive", speedup=2
    )
    assert verdict(claim, rows).verdict == "confirmed"
    assert verdict(claim, rows).ratio == pytest.approx(4)
    larger = msgspec.structs.replace(naive, params={"n": 2048})
    assert verdict(claim, [*rows[:2], measured(larger, 9e-4)]).verdict == "not measured"
    other = msgspec.structs.replace(claim, against="add/*/*/library")
    add = msgspec.structs.replace(case(device="cupy:0"), op="add", group="vector")
    assert verdict(other, [*rows, measured(add, 6e-4)]).ratio == pytest.approx(6)


@pytest.mark.parametrize(
    ("ends", "said"), [((9e-4, 11e-4), "confirmed"), ((1.3e-3, 2e-3), "refuted"), ((1e-4, 5e-4), "refuted")]
)
def test_a_time_between_two(ends, said):
    outcomes = curve({1024: 0.5}, cpu_s=5e-4, device="wgpu:0")
    claim = Claim(claim="overhead", cases=("matmul",), device="software", time_s=ends)
    assert verdict(claim, outcomes, devices=(CPU, SOFTWARE)).verdict == said
    of_a_gpu = msgspec.structs.replace(claim, device=None)
    assert verdict(of_a_gpu, outcomes, devices=(CPU, SOFTWARE)).verdict == "not measured"


def test_the_time_of_the_cpu_alone():
    for claimed, said in ((2e-3, "confirmed"), (5e-4, "refuted")):
        claim = Claim(claim="host", cases=("matmul",), cpu_s=claimed)
        assert verdict(claim, [measured(case(), 1e-3)]).verdict == said


@pytest.mark.parametrize(
    ("ends", "ratios", "said"),
    [
        ((500, 1100), {256: 0.4, 512: 0.75, 1024: 1.5, 2048: 3.0}, "confirmed"),
        ((2000, 4000), {256: 0.4, 512: 0.75, 1024: 1.5, 2048: 3.0}, "refuted"),
        ((100, 400), {256: 0.4, 512: 0.75, 1024: 1.5, 2048: 3.0}, "refuted"),
        ((300, 700), {512: 2.0, 1024: 3.0}, "undecided"),
        ((600, 700), {512: 2.0, 1024: 3.0}, "refuted"),
        ((2000, 4000), {512: 0.3, 1024: 0.4}, "undecided"),
        ((300, 700), {512: 0.3, 1024: 0.4}, "refuted"),
    ],
)
@pytest.mark.parametrize("device", ["cupy:0", "wgpu:0"])
def test_a_break_even_between_two_sizes(ends, ratios, said, device):
    software = device == "wgpu:0"
    claim = Claim(
        claim="from", cases=("matmul",), break_even=ends, tolerance=0, device="software" if software else None
    )
    found = verdict(claim, curve(ratios, device=device), devices=(CPU, SOFTWARE if software else GPU))
    assert found.verdict == said
    assert found.break_even is not None


def test_a_split_answers_only_a_claim_that_names_it():
    split = msgspec.structs.replace(GPU, id="hybrid:cupy:0", backend="hybrid", kind="hybrid")
    outcomes = curve({1024: 40.0}, device="hybrid:cupy:0")
    for text, said in ((MATMUL, "not measured"), (f"{MATMUL}@hybrid:*", "confirmed")):
        found = verdict(Claim(claim="m", cases=(text,), speedup=30), outcomes, devices=(CPU, split))
        assert found.verdict == said


def test_what_was_not_measured_is_neither_confirmed_nor_refuted():
    assert verdict(Claim(claim="m", speedup=2), curve({1024: 40.0})).verdict == "not measured"
    assert verdict(Claim(claim="m", cases=("relu",), speedup=2), curve({1024: 40.0})).verdict == "not measured"
    software = curve({1024: 40.0}, device="wgpu:0")
    found = verdict(Claim(claim="m", cases=(MATMUL,), speedup=2), software, devices=(CPU, SOFTWARE))
    assert (found.verdict, found.reason) == ("not measured", "a software adapter is no GPU")


@pytest.mark.parametrize(
    ("claimed", "said", "why"), [(44, "confirmed", None), (1000, "refuted", None), (2, "confirmed", None)]
)
def test_an_unstable_case_decides_by_its_interval(claimed, said, why):
    wild = tuple(factor**8 for factor in NOISY)
    found = verdict(Claim(claim="m", cases=(MATMUL,), speedup=claimed), curve({1024: 40.0}, factors=wild))
    assert found.measured.label == "unstable"
    assert (found.verdict, found.reason) == (said, why)


def test_a_throttled_case_decides_nothing():
    outcomes = curve({1024: 40.0})
    slow = measured(
        case(device="cupy:0"),
        1e-3 / 40,
        discarded={str(i): "throttled" for i in range(1, 11)},
        stop="max-samples",
    )
    found = verdict(Claim(claim="m", cases=(MATMUL,), speedup=1000), [outcomes[0], slow])
    assert (found.verdict, found.reason) == ("undecided", "throttled")


def test_the_claims_that_come_with_gpubench():
    found = claims_room.load("builtin")
    assert all(claim.cases and claim.document for claim in found)
    four = next(claim for claim in found if claim.claim == "matmul 4K x 4K")
    assert (four.cpu_s, four.gpu_s, four.speedup) == (10.0, 0.05, 200)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_of_claims(tmp_path, suffix):
    path = tmp_path / f"mine.{suffix}"
    entry = {"claim": "ours", "case": "matmul/n=1024", "gpu": "2 ms", "tolerance": 0.2}
    text = json.dumps({"claims": [entry]})
    if suffix == "toml":
        text = '[[claims]]\nclaim = "ours"\ncase = "matmul/n=1024"\ngpu = "2 ms"\ntolerance = 0.2\n'
    path.write_text(text)
    assert claims_room.load(str(path)) == (
        Claim(claim="ours", cases=("matmul/n=1024",), gpu_s=2e-3, tolerance=0.2),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("claims = 3", "Expected `array`"),
        ("x = = 3", "Invalid value"),
        ("[[claims]]\nspeedup = 2", "claim"),
        ('[[claims]]\nclaim = "a"\nspedup = 2', "spedup"),
        ('[[claims]]\nclaim = "a"', "it expects nothing"),
        ('[[claims]]\nclaim = "a"\nspeedup = 2\ntime = [1, 2]', "two things"),
        ('[[claims]]\nclaim = "a"\ntime = ["2 s", "1 s"]', "a smaller number"),
        ('[[claims]]\nclaim = "a"\nspeedup = 2\ncase = "add"\ncases = ["add"]', "not both"),
        ('[[claims]]\nclaim = "a"\ncpu = 2\ncases = ["add", "mul"]', "several cases"),
        ('[[claims]]\nclaim = "a"\ngpu = 2\nagainst = "gpu"', "against needs the speedup"),
        ('[[claims]]\nclaim = "a"\nspeedup = 2\nalso = "add/4096"', "no size"),
        ('[[claims]]\nclaim = "a"\nspeedup = -2', "above 0"),
        ('[[claims]]\nclaim = "a"\nspeedup = inf', "above 0"),
        ('[[claims]]\nclaim = "a"\ngpu = "2 parsec"', "not a duration"),
        ('[[claims]]\nclaim = "a"\nspeedup = 2\ncase = "matmul/4096"', "no size"),
        ('[[claims]]\nclaim = "a"\nspeedup = 2\ntolerance = 1.5', "tolerance"),
        ("schema_version = 2\nclaims = []", "reads gpubench-claims version 1"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, why):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        claims_room.load(str(path))
    assert why in caught.value.why
    assert "docs/claims.md" in caught.value.hint


def test_a_missing_file_says_so():
    with pytest.raises(InputError, match="cannot be read"):
        claims_room.load("nowhere.toml")


def table(format, width=80, **more):
    run = run_of(curve({512: 14.0, 1024: 40.0, 2048: 140.0}))
    analyses = analyse_runs([run], claims=claims_room.load("builtin"))
    return draw_report(analyses, format, RenderOptions(width=width, sections=["claims"], **more))


def test_the_table_counts_and_names_the_baseline():
    text = table("plain")
    assert (
        f"Claims: 2 confirmed, 4 refuted, 1 undecided, {len(claims_room.load('builtin')) - 7} not measured"
        in text
    )
    assert "vs numpy library, OpenBLAS" in text
    assert re.search(r"^matmul 1K x 1K +200x +GPU 40\.0x queued  refuted", text, re.M)
    assert re.search(r"GPU 40\.0x \[40\.0, 40\.0\] queued  refuted", table("plain", 100))
    assert "queued: data on the GPU, many calls" in text
    assert re.search(r"^forward pass +100x +- +not measured", text, re.M)
    assert all(len(line) <= 60 for line in table("plain", 60).splitlines())
    assert re.search(r"^break-even of v.* 0\.5-1 million +- +not measured", text, re.M)
    assert re.search(r"^overhead of one.* 200-250 us +- +not measured", text, re.M)
    assert re.search(r"^whole inferenc.* 0.195x +- +not measured", text, re.M)
    assert "\x1b[32mconfirmed" in table("table", color=True)
    assert "| 100 ms | 1.00 ms | 500 us | 25.0 us |" in table("markdown")


WAITED_MATMUL = "matmul/*/*/*/resident-waited@cupy"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("claim", "where"),
    [
        (Claim(claim="kindest", cases=("matmul@cupy",), speedup=30), "queued"),
        (Claim(claim="waited", cases=(WAITED_MATMUL,), speedup=30), "waited"),
        (Claim(claim="sum", cases=("matmul@cupy", "relu@cupy"), speedup=30), "mixed"),
        (Claim(claim="time", cases=("matmul@cupy",), time_s=(1e-3, 2e-3)), "queued"),
        (Claim(claim="CPU", cases=("matmul@numpy",), cpu_s=40e-3), "ms"),
        (Claim(claim="threshold", cases=(WAITED_MATMUL,), break_even=(1, 2)), "waited"),
    ],
)
def test_what_is_measured_says_whether_calls_were_waited_for(claim, where, width):
    """The kinder situation answers, so the table names it; the CPU's data is at home in any case."""
    found = [measured(case(op, 1024), 40e-3) for op in ("matmul", "relu")]
    found += [
        measured(case(regime=regime, device="cupy:0"), s) for regime, s in ((QUEUED, 1e-3), (WAITED, 2e-3))
    ]
    found.append(measured(case("relu", regime=WAITED, device="cupy:0"), 2e-3))
    options = RenderOptions(width=width, sections=["claims"])
    lines = draw_report(analyse_runs([run_of(found)], claims=[claim]), "plain", options).splitlines()
    row = next(line for line in lines if line.startswith(f"{claim.claim}  "))
    cell = re.split("  +", row)[2]
    assert cell.split()[-1] == where
    assert any(
        line.startswith("copied: ") and "queued: " in " ".join(lines[i:]) for i, line in enumerate(lines)
    ) == (where in ("queued", "mixed"))
    assert ("mixed: parts of a sum" in " ".join(" ".join(lines).split())) == (where == "mixed")


def test_what_stands_beside_a_claim_says_it_too():
    found = [measured(case(), 40e-3)]
    found += [
        measured(case(regime=regime, device="cupy:0"), s) for regime, s in ((QUEUED, 1e-3), (WAITED, 2e-3))
    ]
    claim = Claim(claim="kindest", cases=("matmul@cupy",), also=WAITED_MATMUL, speedup=30)
    text = draw_report(
        analyse_runs([run_of(found)], claims=[claim]), "plain", RenderOptions(sections=["claims"])
    )
    assert re.search(r"^  matmul n=1024 +GPU 20\.0x waited", text, re.M)


def test_the_document_has_every_claim():
    found = msgspec.json.decode(table("json"), type=ReportDocument).claims
    assert len(found) == len(claims_room.load("builtin"))
    assert [row.claim for row in found if row.verdict == "confirmed"] == [
        "matmul 2048",
        "10 to 100 times as fast",
    ]
    answered = [row for row in found if (row.ratio, row.break_even) != (None, None)]
    assert answered == [row for row in found if row.verdict != "not measured"]


def test_after_a_run_that_lacks_claims_the_table_names_the_command():
    def text(claims, run=None):
        analyses = analyse_runs([run or run_of(curve({1024: 40.0}))], claims=claims)
        return " ".join(draw_report(analyses, "plain", RenderOptions(sections=("claims",))).split())

    measured_one, lacking = (Claim(claim=x, cases=(x,), speedup=2.0) for x in (MATMUL, "relu/*/float32"))
    without = run_of([outcome for outcome in curve({1024: 40.0}) if "@numpy" in outcome.id], devices=[CPU])
    asks = "To measure what is not measured"
    assert f"{asks}: gpubench run --ops claims --claims FILE" in text([measured_one, lacking])
    assert f"{asks}, on a machine with a GPU: gpubench run --ops claims vs" not in text([lacking], without)
    assert f"{asks}: gpubench run --ops claims claim" in text(claims_room.load("builtin"))
    assert asks not in text([measured_one])


def test_no_claims_no_section():
    assert "Claims" not in draw_report(analyse_runs([run_of(curve({1024: 40.0}))]), "markdown")


def test_the_example_of_the_documents_is_a_file_of_claims(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "claims.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "ours.toml"
    path.write_text(example, encoding="utf-8")
    (found,) = claims_room.load(str(path))
    assert (found.speedup, found.cpu_s, found.gpu_s, found.tolerance) == pytest.approx((20, 2e-3, 1e-4, 0.25))

"""Which device is advised, when nothing is, and what `gpubench advise` prints."""

from __future__ import annotations

import json
import shlex

import jsonschema
import msgspec
import pytest

from gpubench.analysis.advice import Advice, answer
from gpubench.analysis.contenders import Key
from gpubench.analysis.policy import Policy
from gpubench.base.errors import InputError
from gpubench.base.streams import columns
from gpubench.report.advice import render
from tests.unit.report.builders import (
    CPU,
    GPU,
    HYBRID,
    SOFTWARE,
    case,
    curve,
    failed,
    measured,
    regime_of,
    run_of,
    skipped,
    split,
)

MATMUL = Key("matmul", "float32")
SMALL_LOSES = {256: 0.5, 1024: 2.0, 4096: 8.0}
WILD = (0.5, 1.5, 0.6, 1.4, 1.0, 1.0, 0.7, 1.3, 0.8, 1.2)


def gpu(n: int, seconds: float, regime: str = "transfer-always", implementation: str = "library", **words):
    return measured(case(n=n, regime=regime, device="cupy:0", implementation=implementation), seconds, **words)


def ask(outcomes, n, calls=1, key=MATMUL, **words):
    return answer([run_of(outcomes, **words)], key, n, regime_of(calls))


def test_measured_sizes_are_answered_from_the_measurements():
    for n, device, gain in ((256, "numpy:0", 2.0), (1024, "cupy:0", 2.0), (4096, "cupy:0", 8.0)):
        found = ask(curve(SMALL_LOSES, regime="transfer-always"), n)
        assert (found.device_id, found.basis, found.confidence) == (device, "measured", "clear")
        assert found.gain is not None
        assert found.gain.ratio == pytest.approx(gain)


def test_sizes_in_between_are_interpolated_and_say_so():
    found = ask(curve(SMALL_LOSES, regime="transfer-always"), 2048)
    assert (found.device_id, found.basis) == ("cupy:0", "interpolated")
    assert found.candidates[0].between == (1024, 4096)
    assert found.gain is not None
    assert found.gain.ratio == pytest.approx(4.0, rel=0.02)
    assert found.gain.lo < found.gain.ratio < found.gain.hi
    assert found.confidence == "clear"


def test_near_a_break_even_the_answer_is_close():
    found = ask(curve(SMALL_LOSES, regime="transfer-always"), 520)
    assert (found.basis, found.confidence) == ("interpolated", "close")
    assert found.gain is not None
    assert found.gain.lo < 1 < found.gain.hi


def test_near_a_break_even_in_a_wide_gap_nothing_is_told_and_the_command_measures_it():
    found = ask(curve({64: 1 / 8, 65536: 8.0}, regime="transfer-always"), 2048)
    assert (found.device_id, found.basis, found.confidence) == (None, "unknown", "none")
    assert found.reason == "numpy:0 and cupy:0 cannot be told apart by the sizes around n = 2048"
    assert all(one.time is not None for one in found.candidates)
    assert found.command == "gpubench run --ops matmul --sizes 2048"
    assert found.command in render(found, "table")


@pytest.mark.parametrize("n", [1, 255, 4097, 2**40])
def test_sizes_outside_are_unknown(n):
    found = ask(curve(SMALL_LOSES, regime="transfer-always"), n)
    assert (found.device_id, found.basis, found.confidence, found.gain) == (None, "unknown", "none", None)
    assert "cupy:0 measured from n = 256 to 4096" in found.reason


def test_one_side_alone_answers_only_where_the_other_takes_no_part():
    cpu = [measured(case(n=n), 1e-3) for n in (256, 1024, 4096)]
    assert ask(cpu, 512).confidence == "alone"
    shorter = ask([*cpu, gpu(256, 1e-4), gpu(1024, 1e-4)], 2048)
    assert shorter.device_id is None
    no_room = ask(
        [
            *cpu,
            gpu(256, 1e-4),
            gpu(1024, 1e-4),
            skipped(case(n=2048, regime="transfer-always", device="cupy:0")),
        ],
        3000,
    )
    assert (no_room.device_id, no_room.confidence) == ("numpy:0", "alone")
    assert no_room.candidates[1].reason == "skip at n = 2048: out-of-memory"
    broken = ask([*cpu, failed(case(n=1024, regime="transfer-always", device="cupy:0"))], 512)
    assert broken.device_id == "numpy:0"


def test_a_regime_that_was_not_measured_is_unknown():
    found = ask(curve(SMALL_LOSES, regime="resident"), 1024)
    assert found.basis == "unknown"
    assert found.reason == "cupy:0 not measured with the data there"
    assert ask(curve(SMALL_LOSES, regime="resident"), 1024, calls=None).basis == "measured"


def test_the_fastest_implementation_at_the_size_counts():
    implementations = [
        gpu(256, 1e-4),
        gpu(4096, 4e-4),
        gpu(256, 2e-4, implementation="tuned"),
        gpu(4096, 2e-4, implementation="tuned"),
    ]
    outcomes = [*(measured(case(n=n), 1e-3) for n in (256, 4096)), *implementations]
    small, large = ask(outcomes, 300), ask(outcomes, 4000)
    assert (small.implementation, large.implementation) == ("library", "tuned")


def two_gpus(ratios):
    """wgpu:0 takes 100 us at each size and cupy:0 `ratios` as long; the CPU takes 1 ms."""
    found = []
    for n, ratio in ratios.items():
        beside = measured(case(n=n, regime="transfer-always", device="wgpu:0"), 1e-4)
        found += [measured(case(n=n), 1e-3), gpu(n, 1e-4 * ratio), beside]
    other = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu")
    return {"outcomes": found, "devices": (CPU, GPU, other)}


@pytest.mark.parametrize(
    ("ratios", "n", "device"),
    [
        ({256: 2.0, 512: 2.0, 1024: 0.5, 2048: 0.5, 4096: 2.0}, 1448, "cupy:0"),
        ({256: 1.2, 512: 1.2, 1024: 0.97, 2048: 0.97, 4096: 1.2, 8192: 1.2}, 1024, "cupy:0"),  # as measured
        ({256: 0.4, 65536: 0.4}, 8192, "cupy:0"),  # a gap of 256, by the sizes at its ends
        ({256: 3.0, 65536: 3.0}, 8192, "wgpu:0"),
    ],
)
def test_of_two_devices_of_one_side_the_faster_one_at_the_size_is_advised(ratios, n, device):
    found = ask(n=n, **two_gpus(ratios))
    assert found.device_id == device
    assert found.candidates[0].device_id == device  # the advised one stands first
    words = two_gpus(ratios)
    policy = Policy([run_of(words["outcomes"], devices=words["devices"])])
    assert policy.choose("matmul", shape=n).device_id == device


def test_a_third_device_that_may_be_faster_makes_the_answer_less_than_clear():
    alone, beside = ({256: ratio, 512: ratio, 1024: ratio, 2048: ratio} for ratio in (3.0, 1.03))
    assert ask(n=700, **two_gpus(alone)).confidence == "clear"
    assert ask(n=700, **two_gpus(beside)).confidence == "close"


def test_software_variants_and_overheads_advise_nothing():
    outcomes = [
        measured(case(n=256), 1e-3),
        measured(case(n=256, regime="transfer-always", device="wgpu:0"), 1e-6),
        gpu(256, 2e-3),
        measured(
            case(n=256, regime="transfer-always", device="cupy:0", implementation="library", variant="tf32"),
            1e-6,
        ),
        measured(case("upload", n=256, device="cupy:0"), 1e-6),
    ]
    found = ask(outcomes, 256, devices=(CPU, GPU, SOFTWARE))
    assert [one.device_id for one in found.candidates] == ["numpy:0", "cupy:0"]
    with pytest.raises(InputError, match="no result of upload"):
        ask(outcomes, 256, key=Key("upload", "float32"))


def test_the_answer_says_by_which_software_it_was_measured():
    advice = ask(curve(SMALL_LOSES, regime="transfer-always"), 2048)
    tool = {"numpy": "2.1.0", "cupy": "13.6.0", "wgpu": "0.32.0"}
    known = msgspec.structs.replace(advice, source=msgspec.structs.replace(advice.source, tool=tool))
    text = " ".join(render(known, "table").split())
    assert text.endswith("; cupy 13.6.0, numpy 2.1.0")  # wgpu was not looked at
    assert json.loads(render(known, "json"))["source"]["tool"]["wgpu"] == "0.32.0"
    silent = msgspec.structs.replace(advice, source=msgspec.structs.replace(advice.source, tool={}))
    assert render(silent, "table").splitlines()[-1].endswith("GiB")


def test_a_label_makes_no_answer_less_clear_but_near_times_do():
    far = ask([measured(case(n=256), 1e-2), gpu(256, 1e-4, factors=WILD)], 256)
    assert (far.confidence, far.candidates[0].labels) == ("clear", ("unstable",))
    near = ask([measured(case(n=256), 1.1e-4), gpu(256, 1e-4, factors=WILD)], 256)
    assert (near.device_id, near.confidence) == ("cupy:0", "close")


def test_a_measured_size_whose_times_scatter_wildly_is_answered_as_noisy():
    wild = (0.1, 10.0)
    outcomes = [
        measured(case(n=256), 1e-4, factors=wild, sessions=1),
        gpu(256, 0.9e-4, factors=wild, sessions=1),
    ]
    found = ask(outcomes, 256, sessions=1)
    assert (found.basis, found.confidence) == ("measured", "noisy")


def test_the_newest_run_that_compares_answers():
    named = msgspec.structs.replace
    old = named(run_of(curve({256: 4.0, 1024: 4.0}, regime="transfer-always")), id="old")
    cpu_only = named(run_of([measured(case(n=256), 5e-3)], devices=(CPU,)), id="cpu-only")
    other = run_of([measured(case("relu", n=256), 5e-3)])
    found = answer(iter([other, cpu_only, old]), MATMUL, 256, "transfer-always")
    assert found.source.run_id == "old"
    assert answer([cpu_only, other], MATMUL, 256, "transfer-always").source.run_id == "cpu-only"


def test_no_result_names_what_there_is():
    run = run_of(curve(SMALL_LOSES))
    with pytest.raises(InputError) as error:
        answer([run], Key("relu", "float32"), 256, 1)
    assert error.value.exit_code == 4
    assert error.value.why == "measured: matmul"
    with pytest.raises(InputError) as error:
        answer([run], Key("matmul", "float16", (("m", 4),)), 256, 1)
    assert error.value.message == "there is no result of matmul float16 m=4"
    assert error.value.hint.endswith("--ops matmul --dtypes float16 --params m=4")


def test_the_text_says_what_the_answer_rests_on():
    text = render(ask(curve(SMALL_LOSES, regime="transfer-always"), 2048), "table")
    assert text.startswith("matmul float32, n = 2048, copied at every call: cupy:0 (library)\n")
    assert max(map(len, text.splitlines())) <= 80
    rows = [line for line in text.splitlines() if line.startswith("cupy:0")]
    assert "interpolated between" in rows[0]
    assert "Gain: 4.0x" in text
    assert "over numpy:0 (library)" in text
    unknown = render(ask(curve(SMALL_LOSES, regime="transfer-always"), 2**30), "table")
    assert "unknown" in unknown.splitlines()[0]
    assert "Nothing is extrapolated" in unknown


@pytest.mark.parametrize("n", [1024, 2048, 2**30])
def test_the_document_follows_its_schema(n):
    text = render(ask(curve(SMALL_LOSES, regime="transfer-always"), n), "json")
    found = json.loads(text)
    jsonschema.validate(found, msgspec.json.schema(Advice))
    assert (found["name"], found["schema_version"]) == ("gpubench-advise", 2)
    assert list(found) == [field.name for field in msgspec.structs.fields(Advice)]
    assert (found["device_id"] is None) == (found["basis"] == "unknown") == (n == 2**30)
    assert text == render(ask(curve(SMALL_LOSES, regime="transfer-always"), n), "json")


def test_the_variables_are_none_that_an_option_reads():
    from gpubench.cli.command import Group
    from gpubench.cli.options import commands

    text = render(ask(curve(SMALL_LOSES, regime="transfer-always"), 1024), "env")
    values = dict(line.split("=", 1) for line in shlex.split(text))
    assert values["GPUBENCH_ADVICE_DEVICE"] == "cupy:0"
    assert values["GPUBENCH_ADVICE_BASIS"] == "measured"
    options = {
        "GPUBENCH_" + text.removeprefix("--").upper().replace("-", "_")
        for name in commands()
        for param in Group().get_command(None, name).params
        for text in param.opts
    }
    assert not options & set(values)


def test_timings_of_a_sweep_advise_nothing():
    """They were taken at other shares of a split."""
    plain = curve(SMALL_LOSES, regime="transfer-always")
    wrong = [
        msgspec.structs.replace(
            outcome,
            blocks=[
                *outcome.blocks,
                *(
                    msgspec.structs.replace(block, phase="sweep", wall_s=[value * 50 for value in block.wall_s])
                    for block in outcome.blocks
                ),
            ],
        )
        for outcome in plain
    ]
    alone = [
        msgspec.structs.replace(
            measured(case(n=2048, regime=regime, device=device), 1e-9),
            blocks=[
                msgspec.structs.replace(block, phase="sweep")
                for block in measured(case(n=2048, regime=regime, device=device), 1e-9).blocks
            ],
        )
        for regime, device in (("resident", "numpy:0"), ("transfer-always", "cupy:0"))
    ]
    for n in (1024, 2000, 2048):
        expected, found = ask(plain, n), ask([*wrong, *alone], n)
        assert (found.candidates, found.basis, found.gain) == (
            expected.candidates,
            expected.basis,
            expected.gain,
        )


def splitting(seconds, *, n=1024, regime="resident", gpu_s=1e-3, device="hybrid:cupy:0", sizes=(512, 1024)):
    """Two sizes on the CPU (3 ms) and the GPU, and one of them split with 75 % on the GPU."""
    found = []
    for size in sizes:
        found += [measured(case(n=size), 3e-3, sessions=6)]
        found += [measured(case(n=size, regime=regime, device="cupy:0"), gpu_s, sessions=6)]
    what = case(n=n, implementation="tuned", regime=regime, device=device)
    return [*found, split(what, (3e-3, gpu_s), seconds, sessions=6)]


SPLIT_RUN = {"devices": (CPU, GPU, HYBRID), "sessions": 6}


def test_a_split_that_the_report_recommends_is_the_answer_at_the_size_where_it_was_measured():
    found = splitting(0.78e-3)
    advice = ask(found, 1024, None, **SPLIT_RUN)
    assert (advice.device_id, advice.basis, advice.confidence) == ("hybrid:cupy:0", "measured", "clear")
    assert [one.device_id for one in advice.candidates] == ["hybrid:cupy:0", "cupy:0", "numpy:0"]
    text = render(advice, "table")
    assert text.startswith(
        "matmul float32, n = 1024, data on the device, queued: hybrid:cupy:0 (75% on\n  cupy:0, the rest on the CPU)"
    )
    assert "Gain: 1.28x" in text
    assert "cupy:0 (library)" in text.partition("cannot split")[2]
    assert max(map(len, text.splitlines())) <= 80
    document = msgspec.json.decode(render(advice, "json"), type=Advice)
    assert (document.device_id, document.backend, document.implementation) == (
        "hybrid:cupy:0",
        "hybrid",
        "tuned",
    )
    assert document.time is not None
    assert document.time.estimate == pytest.approx(0.78e-3)
    assert document.gain is not None
    assert (document.gain.device_id, document.gain.ratio) == ("cupy:0", pytest.approx(1 / 0.78, rel=1e-4))
    assert document.split is not None
    assert (document.split.fraction, document.split.ratio) == (0.75, pytest.approx(1 / 0.78, rel=1e-4))
    variables = dict(line.split("=", 1) for line in shlex.split(render(advice, "env")))
    assert (variables["GPUBENCH_ADVICE_DEVICE"], variables["GPUBENCH_ADVICE_FRACTION"]) == (
        "hybrid:cupy:0",
        "0.75",
    )


@pytest.mark.parametrize(("n", "calls"), [(512, None), (700, None), (1024, 1), (1024, 10)])
def test_nothing_is_known_of_a_split_at_another_size_or_in_another_regime(n, calls):
    advice = ask(splitting(0.78e-3), n, calls, **SPLIT_RUN)
    assert advice.split is None
    assert advice.device_id != "hybrid:cupy:0"


@pytest.mark.parametrize("seconds", [1.2e-3, 0.97e-3])
def test_a_split_that_the_report_does_not_recommend_is_no_answer(seconds):
    """The second is faster than the GPU alone, but by less than the report asks for."""
    advice = ask(splitting(seconds), 1024, None, **SPLIT_RUN)
    assert advice.split is None
    assert advice.device_id == "cupy:0"


def test_a_split_answers_no_more_where_a_third_device_is_faster_than_both_its_sides():
    third = [measured(case(n=n, device="wgpu:0"), 0.9e-3, sessions=6) for n in (512, 1024)]
    other = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu")
    words = {"devices": (CPU, GPU, HYBRID, other), "sessions": 6}
    advice = ask([*splitting(0.78e-3), *third], 1024, None, **words)
    assert (advice.device_id, advice.split) == ("wgpu:0", None)


@pytest.mark.parametrize(
    ("ours", "theirs", "answered"),
    [(0.70e-3, 0.75e-3, "hybrid:wgpu:0"), (0.70e-3, 0.88e-3, "wgpu:0"), (0.80e-3, 0.75e-3, "hybrid:wgpu:0")],
)
def test_of_two_splits_the_one_with_the_fastest_single_device_is_the_answer(ours, theirs, answered):
    """cupy's split, faster or not, was never compared with wgpu alone, which is faster than both of its sides. With a
    gain of 2 % wgpu's own is not recommended, so none is."""
    other = msgspec.structs.replace(GPU, id="wgpu:0", backend="wgpu")
    beside = msgspec.structs.replace(HYBRID, id="hybrid:wgpu:0")
    rows = splitting(ours) + [measured(case(n=n, device="wgpu:0"), 0.9e-3, sessions=6) for n in (512, 1024)]
    rows.append(
        split(case(n=1024, implementation="tuned", device="hybrid:wgpu:0"), (3e-3, 0.9e-3), theirs, sessions=6)
    )
    words = {"devices": (CPU, GPU, HYBRID, other, beside), "sessions": 6}
    advice = ask(rows, 1024, None, **words)
    assert advice.device_id == answered
    assert "hybrid:cupy:0" not in {one.device_id for one in advice.candidates}
    reported = Policy([run_of(rows, **words)]).choose(
        "matmul", shape=1024, regime="resident-queued", hybrid=True
    )
    assert reported.device_id == answered
    if advice.split is not None:
        assert reported.fraction == advice.split.fraction
        assert advice.gain is not None
        assert advice.gain.device_id == "wgpu:0"


def test_a_variant_of_a_split_is_no_answer():
    """With TF32, say: the report shows it as a row of its own, and recommends nothing of it."""
    *alone, plain = splitting(0.78e-3)
    what = msgspec.structs.replace(plain.case, variant="tf32")
    variant = msgspec.structs.replace(plain, case=what, id=what.id)
    assert ask([*alone, variant], 1024, None, **SPLIT_RUN).split is None


def test_a_split_of_a_software_adapter_is_no_answer():
    devices = (CPU, GPU, msgspec.structs.replace(HYBRID, kind="software"))
    assert ask(splitting(0.5e-3), 1024, None, devices=devices, sessions=6).split is None


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU with more", "日本語の名前" * 6, "short"])
def test_an_answer_fits_80_columns_whatever_a_device_is_called(name):
    devices = (
        CPU,
        msgspec.structs.replace(GPU, name=name),
        msgspec.structs.replace(HYBRID, name=f"CPU + {name}"),
    )
    for n in (700, 1024):
        text = render(ask(splitting(0.78e-3), n, None, devices=devices, sessions=6), "table")
        table = text.split("\n\n")[1].splitlines()
        assert max(columns(line) for line in text.splitlines()) <= 80
        assert "hybrid:cupy:0" in table[2] or n == 700
        assert all("[" in line for line in table[2:] if line[0] != " ")  # no time is cut


@pytest.mark.parametrize("width", [20, 33, 40, 50, 60, 79, 80])
@pytest.mark.parametrize("n", [2048, 3000, 2**30])
def test_a_narrow_terminal_gets_lines_of_its_width(width, n):
    """Below 20 columns lines have 20."""
    text = render(ask(curve(SMALL_LOSES, regime="transfer-always"), n), "table", width)
    assert max(map(len, text.splitlines())) <= width
    wide = render(ask(curve(SMALL_LOSES, regime="transfer-always"), n), "table")
    for word in ("numpy:0", "cupy:0"):
        assert (word in text) == (word in wide)
    assert render(ask(curve(SMALL_LOSES, regime="transfer-always"), n), "table", 200) == wide

"""Energy: counters of a kernel, the power between two steps, windows beside the calls, and what a report and advice say of them."""

import json
import time
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from msgspec.structs import replace

from gpubench.analysis.advice import answer
from gpubench.analysis.contenders import Key
from gpubench.energy import windows
from gpubench.energy.section import by_energy, energies, energy_section
from gpubench.energy.windows import EnergyCompanion, mean_power, package_counters
from gpubench.measure import protocol
from gpubench.measure.monitor import MonitorTarget, Reading
from gpubench.measure.monitor_child import EnergyFiles, sources
from gpubench.report import analyse_runs
from gpubench.report.layout import RenderOptions
from gpubench.result.case import WAITED
from gpubench.result.run import EnergyWindow
from tests.unit.report.builders import CPU, GPU, case, measured, run_of

COUNTER = "sys/class/powercap/intel-rapl:0/energy_uj"
SENSOR = "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon4/energy1_input"


def powercap(root, packages, *, domain="package-{}", readable=True):
    """What a kernel shows of RAPL: packages by their counts, each with the cores inside it."""
    for number, count in enumerate(packages):
        for name, word in ((f"intel-rapl:{number}", domain.format(number)), (f"intel-rapl:{number}:0", "core")):
            folder = root / "sys/class/powercap" / name
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"{word}\n")
            (folder / "max_energy_range_uj").write_text("999\n")
            if readable:
                (folder / "energy_uj").write_text(f"{count}\n")


def test_the_packages_add_up_and_their_parts_do_not(tmp_path):
    """Files stand where a driver does."""
    powercap(tmp_path, [100, 300])
    files = package_counters(tmp_path)
    assert [file.wraps_uj for file in files] == [999, 999]
    readers, absent = sources([MonitorTarget("numpy:0", files=files)])
    assert (readers["numpy:0"](), absent) == ({"energy_j": pytest.approx(400e-6)}, {})


def test_why_a_cpu_tells_nothing(tmp_path):
    assert "no energy counters" in package_counters(tmp_path)
    powercap(tmp_path, [1], readable=False)
    assert "run as root" in package_counters(tmp_path)
    other = tmp_path / "other"
    powercap(other, [1], domain="psys")
    assert "no counter of a package" in package_counters(other)


def test_a_counter_that_begins_anew_goes_on(tmp_path):
    powercap(tmp_path, [990])
    read, file = EnergyFiles(package_counters(tmp_path)), tmp_path / COUNTER
    counts = [read()["energy_j"]]
    for count in ("5", "995", "7"):
        file.write_text(count)
        counts.append(read()["energy_j"])
    assert [round(1e6 * (later - counts[0])) for later in counts] == [0, 15, 1005, 1017]
    file.write_text("")
    assert read() == {}


@pytest.mark.parametrize(("counts", "power"), [
    ([], None), ([1.0], None), ([5.0] * 50, None), ([1, 1, 2, 2], None), ([1, 2, 3, 1, 2, 3], None), ([0, 5, 5, 25, 26], (7.0, 2)),
])  # fmt: skip
def test_power_is_taken_from_the_first_step_to_the_last(counts, power):
    assert mean_power(list(enumerate(counts))) == power


WATTS = 50.0
ASKED = ("advise", "matmul", "--size", "1k", "--data", "device", "--goal", "energy", "--from", "r.json")


def move(file, until_s):
    """Let the counter of a package move every few milliseconds, as a kernel does, up to this time."""
    while time.perf_counter() < until_s:
        file.with_name("next").write_text(f"{int(WATTS * 1e6 * time.perf_counter())}\n")
        file.with_name("next").replace(file)
        time.sleep(0.005)


def companion(root, monkeypatch):
    """One beside a run of a CPU alone, with short windows."""
    for name, seconds in {"LEAST_S": 0.3, "MOST_S": 0.3, "IDLE_S": 0.2, "WARM_UP_S": 0.0}.items():
        monkeypatch.setattr(windows, name, seconds)
    device = SimpleNamespace(id="numpy:0", kind="cpu", identity=None, gpu_id=None, backend="numpy")
    spec = SimpleNamespace(run=SimpleNamespace(machine=SimpleNamespace(gpus=[])),
                           settings=SimpleNamespace(energy=True),
                           constraints=SimpleNamespace(targets=[SimpleNamespace(device=device)]))  # fmt: skip
    entered = {}
    recorder = SimpleNamespace(outcome=lambda case_id: SimpleNamespace(energy=entered.get(case_id)),
                               add=lambda case_id, energy: entered.setdefault(case_id, []).append(energy))  # fmt: skip
    made = EnergyCompanion(spec, recorder)
    made.root = root
    return made, entered


class Working:
    """A case whose calls take a millisecond."""

    measured = True

    def __init__(self, answers=True, file=None):
        self.case, self._answers, self._file = case(device="numpy:0"), answers, file

    def work(self, start_at, warmup_s, work_s):
        self.measured = self._answers
        if self._file:
            move(self._file, start_at + work_s)
        ends_s = [work_s * (i + 1) / 10 for i in range(10)]
        worked = protocol.Worked(id=1, repeat=int(work_s * 100), begin_s=0.0, ends_s=ends_s)
        return worked if self._answers else None


def measure(made, run):
    made.follow_cases(SimpleNamespace(session=0), SimpleNamespace(key=run.case.workload), [run])


def test_a_call_takes_power_times_its_time_and_is_measured_once(tmp_path, monkeypatch):
    powercap(tmp_path, [0])
    made, entered = companion(tmp_path, monkeypatch)
    file = tmp_path / COUNTER
    waiting = SimpleNamespace(
        perf_counter=time.perf_counter, sleep=lambda s: move(file, time.perf_counter() + s)
    )
    monkeypatch.setattr(windows, "time", waiting)
    run = Working(file=file)
    measure(made, run)
    measure(made, run)
    made.follow_session(SimpleNamespace())
    (window,) = entered[run.case.id]
    assert (window.source, window.reason) == ("rapl", None)
    assert (window.power_w, len(window.idle_w)) == (pytest.approx(WATTS, rel=0.15), 2)
    assert window.joules == pytest.approx(WATTS * 0.3 / 300, rel=0.15)


def tell(begin_s, end_s, watts):
    """Readings of a counter that moves at each of them, and of a sensor that tells a tenth."""
    times = [begin_s + (end_s - begin_s) * i / 4 for i in range(5)]
    return [Reading("numpy:0", t, energy_j=t * watts, power_w=watts / 10) for t in times]


def scripted(tmp_path, monkeypatch, *stretches):
    """A companion whose monitor tells one of these stretches of readings after the other, at 7 s, and its windows."""
    made, entered = companion(tmp_path, monkeypatch)
    monkeypatch.setattr(windows, "time", SimpleNamespace(perf_counter=lambda: 7.0, sleep=Mock()))
    monitor = Mock(rest=iter(stretches).__next__, **{"absent.return_value": {}})
    monkeypatch.setattr(windows, "Monitor", lambda *_: monitor)
    return made, entered, monitor


@pytest.mark.parametrize(("steps", "work_s"), [(1, 15), (10, 12), (1000, 2)])
def test_a_window_holds_enough_steps_and_what_lies_inside_it_counts(tmp_path, monkeypatch, steps, work_s):
    idle = [Reading("numpy:0", i / steps, energy_j=20 * i / steps) for i in range(steps + 2)]
    busy = [*tell(7.5, 8.5, 900), *tell(8.7, 9.3, 50), *tell(10, 11, 900), Reading("numpy:0", 9)]
    powercap(tmp_path, [0])
    made, entered, monitor = scripted(tmp_path, monkeypatch, idle, busy, tell(0, 1, 10))
    for name, value in {"LEAST_S": 2, "MOST_S": 15, "IDLE_S": 2, "WARM_UP_S": 0.5, "STEPS": 50}.items():
        monkeypatch.setattr(windows, name, value)
    run = Working()
    run.case = replace(run.case, calls=10)
    run.work = Mock(return_value=protocol.Worked(id=1, repeat=3, begin_s=1.0, ends_s=[1.5, 2.0]))
    measure(made, run)
    run.work.assert_called_once_with(7 + windows.AHEAD_S + 0.5, 0.5, pytest.approx(work_s))
    ((found,),) = entered.values()
    assert (found.calls, found.window_s, monitor.watch.call_count) == (60, pytest.approx(1.0), 3)
    assert windows.time.sleep.call_args_list == [((2,),)] * 2
    assert (found.power_w, found.sensor_w, found.idle_w) == tuple(map(pytest.approx, (50, 5, [20, 10])))
    made.clean_up()
    monitor.close.assert_called_once_with()


@pytest.mark.parametrize(("idle", "busy", "answers", "reason"), [
    ([], [], True, windows.UNREAD), ([Reading("numpy:0", 0.0)], [], True, windows.UNCOUNTED), (tell(0, 1, 0), [], True, windows.STILL),
    (tell(0, 1, 10), tell(7.2, 7.3, 0), True, windows.STILL), (tell(0, 1, 10), tell(7.2, 7.3, 10), False, None),
])  # fmt: skip
def test_a_counter_that_stops_is_a_reason_and_a_broken_case_a_failure(
    tmp_path, monkeypatch, idle, busy, answers, reason
):
    made, entered, _ = scripted(tmp_path, monkeypatch, idle, busy, [])
    measure(made, Working(answers))
    assert [window.reason for (window,) in entered.values()] == ([reason] if answers else [])


AMD, INTEL = ({"vendor_id": vendor, "pci": "0000:03:00.0", "uuid": None} for vendor in (0x1002, 0x8086))


@pytest.mark.parametrize(("kind", "card", "backend", "source", "files", "why"), [
    ("cpu", None, "numpy", "rapl", [[COUNTER]], ""), ("software", None, "wgpu", "", [], "it is the CPU"),
    ("hybrid", None, "hybrid", "", [], "share its work"), ("gpu", None, "group", "", [], "share its work"),
    ("gpu", None, "cupy", "nvml", [[]], ""), ("gpu", INTEL, "wgpu", "", [], "only NVIDIA's"), ("gpu", AMD, "wgpu", "hwmon", [[SENSOR]], ""),
    ("gpu", AMD | {"pci": "0000:04:00.0"}, "wgpu", "", [], "hwmon"), ("gpu", AMD | {"pci": None}, "wgpu", "", [], "hwmon"),
])  # fmt: skip
def test_each_device_has_its_counter_or_a_reason(
    tmp_path, monkeypatch, kind, card, backend, source, files, why
):
    powercap(tmp_path, [1])
    for path in (tmp_path / SENSOR, tmp_path / SENSOR.replace("hwmon4", "hwmon5")):
        path.parent.mkdir(parents=True)
        path.write_text("7000000\n")
    made, entered = companion(tmp_path, monkeypatch)
    device = made.spec.constraints.targets[0].device
    device.kind, device.backend, device.identity = kind, backend, card and SimpleNamespace(**card)
    monkeypatch.setattr(windows, "Monitor", start := Mock())
    start().absent.return_value = {"numpy:0": "the reason"}
    measure(made, Working())
    ((row,),) = entered.values()
    targets, absent, _ = start.call_args.args
    told = [[file.path.removeprefix(f"{tmp_path}/") for file in target.files] for target in targets]
    assert (row.reason, row.source, told, bool(absent)) == ("the reason", source, files, bool(why))
    assert why in absent.get("numpy:0", "")


ON_GPU = case(regime="resident-waited", device="cupy:0")


def window(power_w, calls=2000, source="rapl", **more):
    return EnergyWindow(session=0, source=source, window_s=2.0, calls=calls, power_w=power_w, **more)


def run_with(*cases):
    """A run of cases with the seconds of a call and a window of each."""
    outcomes = [replace(measured(*own), energy=[row]) for *own, row in cases]
    others = replace(CPU, id="torch:cpu", backend="torch"), replace(CPU, id="wgpu:0", kind="software")
    return run_of(outcomes, devices=(CPU, GPU, *others))


UNREADABLE = EnergyWindow(session=0, source="rapl", reason="run as root")


def draw_report(cpu, gpu, *more):
    """The table of a CPU's and a GPU's case with these windows, and in TF32 the GPU takes a quarter."""
    tf32 = replace(ON_GPU, variant="tf32"), 2.5e-5, replace(gpu, calls=4 * gpu.calls)
    (analysis,) = analyse_runs([run_with(*more, (case(), 1e-3, cpu), (ON_GPU, 1e-4, gpu), tf32)])
    return analysis, energy_section(analysis, RenderOptions())


def test_both_sides_stand_beside_each_other_where_both_are_known():
    gpu = window(500.0, 8_000, "nvml", idle_w=[110, 100])
    more = (
        (replace(ON_GPU, regime="resident-queued"), 1e-4, window(500.0, 4_000)),
        (replace(ON_GPU, implementation="tuned"), 1e-4, window(600.0, 8_000)),
        (case("relu"), 1e-3, UNREADABLE),
        (case("tanh", device="wgpu:0"), 1e-3, UNREADABLE),  # on neither side
    )
    analysis, section = draw_report(window(200.0, idle_w=[90, 80]), gpu, *more)
    waited, other, unknown = ([cell.text for cell in row][2:] for row in section.tables[0].rows)
    assert waited == ["waited", "200 mJ", "125 mJ", "GPU 1.60x", "200 W", "500 W", "100 W"]
    assert other == ["queued", "200 mJ", "250 mJ", "CPU 1.25x", "200 W", "500 W", "-"]
    assert unknown == ["", "unknown", "unknown", "-", "-", "-", "-"]
    assert [one.joules for one in energies(analysis)][-3:] == [0.2, 0.125, 0.03125]
    *kept, power, more_power, rest = (column.rank for column in section.tables[0].columns)
    assert ({*kept}, 0 < power == more_power < rest) == ({0}, True), "which go first where there is no room"
    _, section = draw_report(UNREADABLE, gpu)
    assert [cell.text for cell in section.tables[0].rows[0]][3:6] == ["unknown", "125 mJ", "-"]
    assert any("run as root" in line for line in section.lines)


@pytest.mark.parametrize(
    ("cpu_w", "advised"), [(200.0, "cupy:0"), (46.0, "numpy:0"), (None, None), (49.0, "numpy:0")]
)
def test_advice_for_the_least_energy(in_process, tmp_path, cpu_w, advised):
    cpu = window(cpu_w, reason=None if cpu_w else "run as root")
    tuned = replace(ON_GPU, implementation="tuned"), 1e-4, window(600.0, 20_000)
    third = [(case(device="torch:cpu"), 1e-3, window(900.0))] if cpu_w == 200 else []
    analysis, _ = draw_report(cpu, window(500.0, 20_000, "nvml"), *third, tuned)
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(analysis.run))
    done = in_process(*ASKED, status=0)
    said = f"{advised} (library)" if advised else "unknown"
    assert f"on the device, waited: {said}" in " ".join(done.stdout.split())
    document = json.loads(in_process(*ASKED, "--json").stdout)
    assert (document["goal"], document["command"]) == ("energy", None)  # the same run would say the same again
    assert document["joules"]["numpy:0"] == (pytest.approx(cpu_w / 1000) if cpu_w else "run as root")
    assert document["confidence"] == ("none" if not cpu_w else "close" if cpu_w == 49 else "clear")
    assert (document["device_id"], document["backend"]) == (advised, advised and advised[:-2])
    assert ("run as root" in " ".join(done.stdout.split())) == (cpu_w is None)


def test_two_codes_of_the_cpu_are_no_two_sides(in_process, tmp_path):
    codes = [
        (case(device=name), 1e-3, window(watts)) for name, watts in (("numpy:0", 200.0), ("torch:cpu", 300.0))
    ]
    silent = EnergyWindow(session=0, source="nvml", reason=windows.UNCOUNTED)
    run = run_with(*codes, (ON_GPU, 1e-3, silent))
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(run))
    document = json.loads(in_process(*ASKED, "--json").stdout)
    assert (document["device_id"], document["confidence"]) == (None, "none")
    assert windows.UNCOUNTED in document["reason"]
    advice = answer([run], Key("matmul", "float32"), 1024, WAITED)
    other = by_energy(advice, [replace(run, id="other", outcomes=[]), replace(run, id="one")])
    assert (other.source.run_id, by_energy(advice, []).source) == ("one", advice.source)
    assert by_energy(advice, []).command == "gpubench run --ops matmul --sizes 1024 --energy"

"""Energy: counters of a kernel, the power between two steps, windows beside the calls, and what a report and advice say of them."""

import json
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.energy import windows
from gpubench.energy.section import energies, energy_section
from gpubench.energy.windows import EnergyCompanion, board_counters, mean_power, package_counters
from gpubench.measure import protocol
from gpubench.measure.monitor import CounterFile, Monitor, MonitorTarget, Reading
from gpubench.measure.monitor_child import EnergyFiles, sources
from gpubench.report import analyse_runs
from gpubench.report.layout import RenderOptions
from gpubench.result.run import EnergyWindow
from tests.unit.report.builders import case, measured, run_of

COUNTER = "sys/class/powercap/intel-rapl:0/energy_uj"


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


def test_an_amd_gpu_is_found_by_its_address(tmp_path):
    sensor = tmp_path / "sys/bus/pci/devices/0000:03:00.0/hwmon/hwmon4"
    sensor.mkdir(parents=True)
    assert "hwmon" in board_counters(tmp_path, "0000:03:00.0")
    (sensor / "energy1_input").write_text("7000000\n")
    assert board_counters(tmp_path, "0000:03:00.0") == [CounterFile(str(sensor / "energy1_input"))]
    assert "hwmon" in board_counters(tmp_path, None)


@given(st.floats(1, 1000), st.floats(0.05, 0.3), st.floats(0, 1e6), st.floats(0, 0.3))
def test_power_is_taken_from_step_to_step(watts, every_s, begin_s, ahead_s):
    """A counter that moves every so often, read more often than that."""
    times = [begin_s + 0.02 * i for i in range(200)]
    readings = [(t, watts * every_s * ((t - begin_s + ahead_s) // every_s)) for t in times]
    power = mean_power(readings)
    assert power.watts == pytest.approx(watts, rel=0.02)
    assert abs(power.steps - 4 / every_s) <= 3


@pytest.mark.parametrize("counts", [[], [1.0], [5.0] * 50, [1, 1, 2, 2], [1, 2, 3, 1, 2, 3]])
def test_a_counter_that_stands_still_or_goes_back_tells_nothing(counts):
    assert mean_power([(0.02 * i, count) for i, count in enumerate(counts)]) is None


WATTS = 50.0
ASKED = ("advise", "matmul", "--size", "1k", "--data", "device", "--goal", "energy", "--from", "r.json")


@pytest.fixture
def package(tmp_path):
    """A CPU's counter as the kernel shows it: a file that moves every few milliseconds until this event is set."""
    powercap(tmp_path, [0])
    file, stands = tmp_path / COUNTER, threading.Event()

    def move():
        while not stands.wait(0.005):
            file.with_name("next").write_text(f"{int(WATTS * 1e6 * time.perf_counter())}\n")
            file.with_name("next").replace(file)

    thread = threading.Thread(target=move)
    thread.start()
    yield stands
    stands.set()
    thread.join()


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
    """A case whose calls take a millisecond; `at_work` is called meanwhile."""

    measured = True

    def __init__(self, at_work=lambda: None, answers=True):
        self.case, self._at_work, self._answers = case(device="numpy:0"), at_work, answers

    def work(self, start_at, warmup_s, work_s):
        self._at_work()
        self.measured = self._answers
        time.sleep(max(0.0, start_at + work_s - time.perf_counter()))
        ends_s = [work_s * (i + 1) / 10 for i in range(10)]
        worked = protocol.Worked(id=1, repeat=int(work_s * 100), begin_s=0.0, ends_s=ends_s)
        return worked if self._answers else None


def measure(made, run):
    made.follow_cases(SimpleNamespace(session=0), SimpleNamespace(key=run.case.workload), [run])


@pytest.mark.usefixtures("package")
def test_a_call_takes_power_times_its_time_and_is_measured_once(tmp_path, monkeypatch):
    made, entered = companion(tmp_path, monkeypatch)
    run = Working()
    measure(made, run)
    measure(made, run)
    made.follow_session(SimpleNamespace())
    (window,) = entered[run.case.id]
    assert (window.source, window.reason) == ("rapl", None)
    assert (window.power_w, len(window.idle_w)) == (pytest.approx(WATTS, rel=0.15), 2)
    assert window.joules == pytest.approx(WATTS * 0.3 / 300, rel=0.15)


def test_a_counter_that_stops_is_a_reason_and_a_case_that_breaks_is_a_failure(tmp_path, monkeypatch, package):
    made, entered = companion(tmp_path, monkeypatch)
    measure(made, Working(answers=False))
    assert not entered
    measure(made, Working(package.set))
    assert [window.reason for window in entered.popitem()[1]] == [windows.STILL]
    for readings, reason in ([], windows.UNREAD), ([Reading("numpy:0", 0.0)], windows.UNCOUNTED):
        monkeypatch.setattr(made, "_read", lambda *_, readings=readings: readings)
        measure(made, Working())
        assert [window.reason for window in entered.popitem()[1]] == [reason]
    made.clean_up()


@pytest.mark.usefixtures("package")
def test_an_interrupt_ends_the_child_that_reads(tmp_path, monkeypatch):
    made, _ = companion(tmp_path, monkeypatch)
    closed, close = [], Monitor.close
    monkeypatch.setattr(Monitor, "close", lambda self: closed.append(close(self)))
    with pytest.raises(KeyboardInterrupt):
        measure(made, Working(Mock(side_effect=KeyboardInterrupt)))
    assert not closed
    made.clean_up()
    assert closed


ON_GPU = case(regime="resident-waited", device="cupy:0")


def window(power_w, calls=2000, source="rapl", **more):
    return EnergyWindow(session=0, source=source, window_s=2.0, calls=calls, power_w=power_w, **more)


def run_with(*cases):
    """A run of cases with the seconds of a call and a window of each."""
    return run_of([msgspec.structs.replace(measured(*own), energy=[row]) for *own, row in cases])


def draw_report(cpu, gpu):
    """The table of a CPU's and a GPU's case with these windows, and in TF32 the GPU takes a quarter."""
    quarter = msgspec.structs.replace(gpu, calls=4 * gpu.calls)
    tf32 = msgspec.structs.replace(ON_GPU, variant="tf32")
    (analysis,) = analyse_runs([run_with((case(), 1e-3, cpu), (ON_GPU, 1e-4, gpu), (tf32, 2.5e-5, quarter))])
    return analysis, energy_section(analysis, RenderOptions())


def test_both_sides_stand_beside_each_other_where_both_are_known():
    gpu = window(500.0, 20_000, "nvml", idle_w=[110, 100])
    analysis, section = draw_report(window(200.0, idle_w=[90, 80]), gpu)
    texts = [cell.text for cell in section.tables[0].rows[0]]
    assert texts[2:] == ["waited", "200 mJ", "50.0 mJ", "GPU 4x", "200 W", "500 W", "100 W"]
    assert [one.joules for one in energies(analysis)] == [0.2, 0.05, 0.0125]
    _, section = draw_report(EnergyWindow(session=0, source="rapl", reason="run as root"), gpu)
    assert [cell.text for cell in section.tables[0].rows[0]][3:6] == ["unknown", "50.0 mJ", "-"]
    assert any("run as root" in line for line in section.lines)


@pytest.mark.parametrize(("cpu_w", "said"), [
    (200.0, "cupy:0 (library)"), (20.0, "numpy:0 (library)"), (None, "unknown"), (49.0, "numpy:0 (library)")])  # fmt: skip
def test_advice_for_the_least_energy(in_process, tmp_path, cpu_w, said):
    cpu = window(cpu_w, reason=None if cpu_w else "run as root")
    analysis, _ = draw_report(cpu, window(500.0, 20_000, "nvml"))
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(analysis.run))
    done = in_process(*ASKED, status=0)
    assert f"on the device, waited: {said}" in " ".join(done.stdout.split())
    document = json.loads(in_process(*ASKED, "--json").stdout)
    assert (document["goal"], document["command"]) == ("energy", None)  # the same run would say the same again
    assert document["joules"]["numpy:0"] == (pytest.approx(cpu_w / 1000) if cpu_w else "run as root")
    assert document["confidence"] == ("none" if not cpu_w else "close" if cpu_w == 49 else "clear")
    assert ("run as root" in " ".join(done.stdout.split())) == (cpu_w is None)


def test_two_codes_of_the_cpu_are_no_two_sides(in_process, tmp_path):
    codes = [
        (case(device=name), 1e-3, window(watts)) for name, watts in (("numpy:0", 200.0), ("torch:cpu", 300.0))
    ]
    silent = EnergyWindow(session=0, source="nvml", reason=windows.UNCOUNTED)
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(run_with(*codes, (ON_GPU, 1e-3, silent))))
    document = json.loads(in_process(*ASKED, "--json").stdout)
    assert (document["device_id"], document["confidence"]) == (None, "none")
    assert windows.UNCOUNTED in document["reason"]

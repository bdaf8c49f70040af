"""Counters of energy: what a kernel shows of them, where they begin anew, and the power between two steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpubench.energy.windows import board_counters, mean_power, package_counters
from gpubench.measure.monitor import CounterFile, MonitorTarget
from gpubench.measure.monitor_child import EnergyFiles, sources


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
    powercap(tmp_path, [100, 300])
    files = package_counters(tmp_path)
    assert [file.wraps_uj for file in files] == [999, 999]
    assert EnergyFiles(files)() == {"energy_j": pytest.approx(400e-6)}


def test_why_a_cpu_tells_nothing(tmp_path):
    assert "no energy counters" in package_counters(tmp_path)
    powercap(tmp_path, [1], readable=False)
    assert "run as root" in package_counters(tmp_path)
    other = tmp_path / "other"
    powercap(other, [1], domain="psys")
    assert "no counter of a package" in package_counters(other)


def test_a_counter_that_begins_anew_goes_on(tmp_path):
    powercap(tmp_path, [990])
    read, file = EnergyFiles(package_counters(tmp_path)), tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"
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


def test_the_monitor_reads_files_in_the_place_of_a_driver(tmp_path):
    powercap(tmp_path, [2_000_000])
    readers, absent = sources([MonitorTarget("numpy:0", files=package_counters(tmp_path))])
    assert (readers["numpy:0"]()["energy_j"], absent) == (2.0, {})


@given(
    watts=st.floats(1, 1000), every_s=st.floats(0.05, 0.3), begin_s=st.floats(0, 1e6), ahead_s=st.floats(0, 0.3)
)
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

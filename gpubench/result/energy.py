"""Energy that a device took while it did nothing but calls of one case."""

import msgspec


class EnergyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Some seconds in which a device did nothing but calls of a case, beside its counter of energy."""

    session: int  # in which it was measured
    source: str  # what counts: "nvml" the GPU's board, "hwmon" an AMD GPU's, "rapl" the packages of the CPU
    window_s: float = 0.0  # how long the calls took
    calls: int = 0  # in the window
    power_w: float | None = None  # the mean between the counter's first and last step in the window
    steps: int = 0  # of the counter between these
    idle_w: list[float] = []  # the device's power without calls, before and after
    sensor_w: float | None = None  # the mean of what its power sensor told in the window
    reason: str | None = None  # why nothing is known

    @property
    def joules(self) -> float | None:
        """The energy of one call, with what the device takes at rest."""
        return None if self.power_w is None or not self.calls else self.power_w * self.window_s / self.calls

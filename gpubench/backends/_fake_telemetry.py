"""What the gauge reads on fake devices: steady clocks, and one actor for each way in which they are not."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

FULL_HZ, MEMORY_HZ, TEMPERATURE_C, POWER_W = 1.98e9, 2.6e9, 45.0, 300.0
# Each block is read at its start and at its end; scripted blocks are too short for more.
READINGS_PER_BLOCK = 2


def users(word: str) -> dict[str, int]:
    """Who else is on `fake:WORD`."""
    return {"computing": 1, "used_bytes": 2**30} if word == "shared" else {}


def source(word: str) -> Callable[[], dict[str, Any]]:
    """The readings of `fake:WORD`, one a call; the devices that are not named here are steady."""
    numbers = itertools.count()

    def read() -> dict[str, Any]:
        first_block = next(numbers) < READINGS_PER_BLOCK
        if word == "gauge-hangs":
            time.sleep(3600)
        if word == "gauge-dies":
            os._exit(3)
        throttle, clock_hz = [], FULL_HZ
        if word == "throttle" or (word == "cools" and first_block):
            throttle, clock_hz = ["hw_thermal_slowdown"], 0.9 * FULL_HZ
        if word == "slows" and not first_block:
            clock_hz = 0.5 * FULL_HZ
        if word == "power-cap" and not first_block:
            throttle, clock_hz = ["sw_power_cap"], 0.6 * FULL_HZ
        return {
            "clock_hz": clock_hz, "memory_clock_hz": MEMORY_HZ, "temperature_c": TEMPERATURE_C,
            "power_w": POWER_W, "throttle": throttle,
        }  # fmt: skip

    return read

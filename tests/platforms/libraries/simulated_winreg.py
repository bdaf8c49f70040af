"""Stands for winreg: the display adapters of a PC with a GeForce and a processor with graphics, one entry of them stale."""

import contextlib

HKEY_LOCAL_MACHINE = 0x80000002
_CLASS = "SYSTEM\\CurrentControlSet\\Control\\Class\\{4d36e968-e325-11ce-bfc1-08002be10318}"
_SIZE = "HardwareInformation.qwMemorySize"
_ENTRIES = {
    "0000": {"MatchingDeviceId": "PCI\\VEN_10DE&DEV_2882", "DriverVersion": "32.0.15.8157", _SIZE: 8 << 30},
    "0001": {"MatchingDeviceId": "pci\\ven_1002&dev_164e&rev_c5", "DriverVersion": "32.0.21025.1024",
             _SIZE: (512 << 20).to_bytes(8, "little")},
    "0002": {"MatchingDeviceId": "PCI\\VEN_1002&DEV_73BF", "DriverVersion": "31.0.1", _SIZE: 16 << 30},
    "Configuration": {}, "Properties": None}  # fmt: skip


@contextlib.contextmanager
def OpenKey(key, name):
    found = _ENTRIES if (key, name) == (HKEY_LOCAL_MACHINE, _CLASS) else _ENTRIES.get(name)
    if found is None:
        raise PermissionError(13, "Access is denied")
    yield found


def QueryInfoKey(key):
    return (len(_ENTRIES), len(key), 0)


def EnumKey(key, number):
    return list(_ENTRIES)[number]


def EnumValue(key, number):
    name, value = list(key.items())[number]
    return name, value, 0

"""A scripted NVML: `answers` maps a function to its value, to a function of its arguments, or to an error."""

from types import SimpleNamespace

ABSENT = object()  # the answer for a function that this version of the library lacks


class Nvml:
    """One card, unless the answers say otherwise; what is not scripted is not supported."""

    nvmlMemory_v2 = 2
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """What NVML raises, by its number or in its words."""

        def __init__(self, value):
            words = {15: "GPU is lost", 4: "Insufficient Permissions"}.get(value, f"NVML error {value}")
            super().__init__(value if isinstance(value, str) else words)
            self.value = value

    def __init__(self, **answers):
        self.answers = {
            "nvmlInit": None, "nvmlSystemGetDriverVersion": "580.1", "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:06:00.0", pciDeviceId=0x233510DE),
        } | answers  # fmt: skip

    def __getattr__(self, name):
        if not name.startswith("nvml") or self.answers.get(name) is ABSENT:
            raise AttributeError(name)

        def call(*arguments):
            answer = self.answers.get(name, self.NVMLError(3))
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call

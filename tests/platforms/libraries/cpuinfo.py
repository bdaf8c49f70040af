"""Stands for py-cpuinfo: what it tells on a Windows PC and on a Mac, in the types that it uses there, but for one."""

import os


def get_cpu_info():
    if os.environ["GPUBENCH_SIMULATED"] == "darwin":
        return {"brand_raw": "Apple M3", "arch": "ARM_8", "bits": 64, "count": 8, "hz_advertised": [0, 0], "flags": [],
                "vendor_id_raw": 0, "l2_cache_size": 0}  # fmt: skip
    return {"brand_raw": "AMD Ryzen 7 5800X 8-Core Processor", "vendor_id_raw": "AuthenticAMD",
            "arch": "X86_64", "bits": 64, "count": 16, "hz_advertised": [3800000000, 0],
            "hz_actual": [3800000000, 0], "l2_cache_size": 4194304, "l3_cache_size": 33554432,
            "flags": ["3dnow", "aes", "avx", "avx2", "fma", "f16c", "mmx", "sse2"]}  # fmt: skip

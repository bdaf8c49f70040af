"""Vendor ids of PCI: the makers of GPUs, and Mesa, which has one for software adapters that are on no bus."""

AMD, APPLE, INTEL, NVIDIA, MESA = 0x1002, 0x106B, 0x8086, 0x10DE, 0x10005

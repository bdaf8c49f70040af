"""A wing: networks, whose stages are ops, on one device or with each stage on the CPU or the GPU."""

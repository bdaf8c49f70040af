"""Families of kernels, each with its CPU, CUDA and WGSL forms side by side; the ops are declared with them."""

"""The WGSL matmul: the blocks it works in, the text of its kernels, and their programs."""

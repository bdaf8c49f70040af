"""The contract of an op: its declaration, the programs of its kernels, the trial of one from another package.

Every room above `base` may use it.
"""

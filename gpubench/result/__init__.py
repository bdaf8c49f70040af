"""The file of a run: its types, and in `store` how it is read, written and kept.

Every room but `base` and `kernels` may use it.
"""

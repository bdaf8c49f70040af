"""The result file of a run: its types, and in `store` the code that reads, writes and keeps it.

Every package except `base` and `kernels` may import it.
"""

"""The contract of an op: its declaration, the programs of its kernels, and the trial of an op from another
package.

Every package above `base` may use it.
"""

import numpy
import scipy.sparse

import gpubench


def product(matrix, x):
    return matrix @ x


def to_cupy(x):
    import cupy
    import cupyx.scipy.sparse

    return cupyx.scipy.sparse.csr_matrix(x) if scipy.sparse.issparse(x) else cupy.asarray(x)


def make(rng, n):
    parts = rng.random(16 * n), rng.integers(0, n, 16 * n), numpy.arange(0, 16 * n + 1, 16)
    return [gpubench.stays(scipy.sparse.csr_matrix(parts, shape=(n, n))), rng.random(n)]


sparse_product = gpubench.pair(cpu=product, gpu=product, to_gpu=to_cupy, inputs=make)

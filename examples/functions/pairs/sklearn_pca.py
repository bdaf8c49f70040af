from sklearn.decomposition import PCA

import gpubench


def sklearn_variances(x):
    return PCA(n_components=8, svd_solver="covariance_eigh").fit(x).explained_variance_


def cupy_variances(x):
    import cupy

    return cupy.linalg.eigvalsh(cupy.cov(x, rowvar=False))[:-9:-1]


pca = gpubench.pair(
    cpu=sklearn_variances,
    gpu=cupy_variances,
    inputs=lambda rng, n: [rng.standard_normal((n, 64))],
    tolerance=1e-3,
)

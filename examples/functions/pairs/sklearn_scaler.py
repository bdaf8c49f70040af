from sklearn.preprocessing import StandardScaler

import gpubench


def scale_by_sklearn(x):
    return StandardScaler().fit_transform(x)


def scale_by_cupy(x):
    return (x - x.mean(0)) / x.std(0)


scaler = gpubench.pair(
    cpu=scale_by_sklearn, gpu=scale_by_cupy, inputs=lambda rng, n: [rng.random((n, 64))], tolerance=1e-4
)

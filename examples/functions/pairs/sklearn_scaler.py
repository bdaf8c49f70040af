from sklearn.preprocessing import StandardScaler

import gpubench


def sklearn_scaled(x):
    return StandardScaler().fit_transform(x)


def cupy_scaled(x):
    return (x - x.mean(0)) / x.std(0)


scaler = gpubench.pair(
    cpu=sklearn_scaled, gpu=cupy_scaled, inputs=lambda rng, n: [rng.random((n, 64))], tolerance=1e-4
)

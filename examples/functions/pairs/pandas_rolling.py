import pandas

import gpubench


def pandas_mean(series):
    return series.rolling(50).mean()


def cupy_mean(x):
    import cupy

    total = cupy.cumsum(x)
    mean = cupy.full(x.shape, cupy.nan)
    mean[49:] = (total[49:] - cupy.concatenate([cupy.zeros(1), total[:-50]])) / 50
    return mean


def to_cupy(series):
    import cupy

    return cupy.asarray(series.to_numpy())


rolling_mean = gpubench.pair(
    cpu=pandas_mean, gpu=cupy_mean, to_gpu=to_cupy, inputs=lambda rng, n: [pandas.Series(rng.random(n))]
)

import pandas

import gpubench


def to_cupy(frame):
    import cupy  # here, so that the file can be imported where there is no GPU

    return cupy.asarray(frame["key"].to_numpy()), cupy.asarray(frame["value"].to_numpy())


def cupy_sums(columns):
    import cupy

    key, value = columns
    return cupy.bincount(key, weights=value)


def make(rng, n):
    return [pandas.DataFrame({"key": rng.permutation(n) % 50, "value": rng.random(n)})]


groupby_sum = gpubench.pair(
    cpu=lambda frame: frame.groupby("key")["value"].sum(), gpu=cupy_sums, to_gpu=to_cupy, inputs=make
)

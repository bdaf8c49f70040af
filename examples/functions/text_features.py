import gpubench


@gpubench.function
def text_features(xp, text):
    """How often each pair of neighbouring bytes occurs in a text of n bytes."""
    codes = xp.astype(text, xp.int64)
    counts = xp.bincount(256 * codes[:-1] + codes[1:], minlength=65536)
    return counts / text.shape[0]


@text_features.inputs
def _(rng, n):
    return [rng.integers(32, 127, n, dtype="uint8")]

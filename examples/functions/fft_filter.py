import gpubench


@gpubench.function
def fft_filter(xp, signal):
    """A signal of n samples without the upper nine tenths of its frequencies."""
    spectrum = xp.fft.rfft(signal)
    low = xp.arange(spectrum.shape[0]) < spectrum.shape[0] // 10
    return xp.fft.irfft(spectrum * low, n=signal.shape[0])


@fft_filter.inputs
def _(rng, n):
    return [rng.standard_normal(n, dtype="float32")]

import gpubench


@gpubench.function
def softmax_cross_entropy(xp, logits, labels):
    """The mean loss of n predictions over 1000 classes."""
    shifted = logits - xp.max(logits, axis=1)[:, None]
    log_sum = xp.log(xp.exp(shifted).sum(1))
    return xp.mean(log_sum - shifted[xp.arange(labels.shape[0]), labels])


@softmax_cross_entropy.inputs
def _(rng, n):
    return [rng.standard_normal((n, 1000), dtype="float32"), rng.integers(0, 1000, n)]

"""attention_cached: what one new token sees of all tokens so far, whose keys and values a cache holds.

The step of a transformer that writes a text. The cache has the token's own key and value already (`cache_append`).
"""

from gpubench.kernels.templates.attention.cached import attention_over_cache

OP = attention_over_cache(
    name="attention_cached", group="layers",
    summary="out = softmax(q k^T / sqrt(e)) v for each head, of one token over the cache of all so far",
    append=False,
)  # fmt: skip

"""attention_append: one new token's key and value join the cache, and what the token sees of all so far, in one launch.

The step of a transformer that writes a text: `cache_append` and `attention_cached` together.
"""

from gpubench.kernels.templates.attention.cached import attention_over_cache

OP = attention_over_cache(
    name="attention_append", group="layers",
    summary="cache[position] = k, v of one token; out = softmax(q k^T / sqrt(e)) v over the cache so far",
    append=True,
)  # fmt: skip

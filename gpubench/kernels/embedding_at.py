"""embedding_at: the embedding of tokens that follow others. Their positions begin at `start`, on the device."""

from gpubench.kernels.templates.embedding import embedding

OP = embedding(
    name="embedding_at", group="layers", summary="out = table[ids] + positions[start : start + n]", started=True,
)  # fmt: skip

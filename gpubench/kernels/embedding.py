"""embedding: out = table[ids] + positions, what a transformer does to the ids of its tokens."""

from gpubench.kernels.templates.embedding import embedding

OP = embedding(name="embedding", group="network", summary="out = table[ids] + positions")

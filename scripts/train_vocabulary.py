"""Write the text that the op `tokenise` divides into tokens, and the vocabulary, to gpubench/kernels/data/.

Both are frozen copies, because the pages change and an op must not. Run this script only to change the op:

    .venv/bin/python scripts/train_vocabulary.py

The text consists of the documentation pages about measuring, in ASCII. The vocabulary is made by byte-pair
encoding (Sennrich et al., arXiv 1508.07909). It starts with the 256 bytes. Each further entry joins the two
neighbouring entries that occur together most often inside words.
"""

from __future__ import annotations

import base64
from collections import Counter
from itertools import pairwise
from pathlib import Path

from gpubench.kernels.tokens import RANKS, TEXT, join_pair, words

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "measuring", "statistics", "breakeven", "reading-the-report", "hybrid", "comparing", "accuracy", "advice",
)  # fmt: skip
ENTRIES = 2048


def frozen_text() -> bytes:
    """Return the pages as one text. It begins with a letter and ends with a newline, so that it can be
    repeated."""
    pages = "\n".join((DOCS / f"{name}.md").read_text(encoding="utf-8").strip() for name in PAGES)
    return pages.lstrip("# ").encode("ascii", "ignore").strip() + b"\n"


def train(text: bytes) -> list[bytes]:
    """Return the entries in the order of their rank. If two pairs have the same count, the first in byte order
    is taken."""
    entries = [bytes([value]) for value in range(256)]
    counts = Counter(words(text))
    parts = {word: [bytes([value]) for value in word] for word in counts}
    while len(entries) < ENTRIES:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, split in parts.items():
            for pair in pairwise(split):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        entries.append(b"".join(best))
        parts = {word: join_pair(split, best) for word, split in parts.items() if len(split) > 1}
    return entries


def main() -> None:
    """Write the text and the vocabulary."""
    text = frozen_text()
    TEXT.parent.mkdir(exist_ok=True)
    TEXT.write_bytes(text)
    lines = (f"{base64.b64encode(entry).decode()} {rank}\n" for rank, entry in enumerate(train(text)))
    RANKS.write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    main()

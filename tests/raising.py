"""What a call raises."""

import pytest


def raised(kind, call, *arguments, **words):
    """Return the error of this kind that the call raises."""
    with pytest.raises(kind) as caught:
        call(*arguments, **words)
    return caught.value

"""The constants that gelu and its derivative share: tanh(C (x + CUBIC x^3)), Hendrycks and Gimpel, arXiv 1606.08415."""

import math

C = math.sqrt(2 / math.pi)
CUBIC = 0.044715

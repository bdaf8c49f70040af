import gpubench

COEFFICIENTS = 0.5, -1.2, 0.3, 0.7, -0.2, 0.05, 0.01, -0.002


@gpubench.function
def polynomial(xp, x):
    """A polynomial of degree 7 at n places."""
    total = 0 * x
    for coefficient in reversed(COEFFICIENTS):
        total = total * x + coefficient
    return total

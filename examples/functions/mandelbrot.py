import gpubench


@gpubench.function
def mandelbrot(xp, real, imag):
    """For n points the number of 30 steps that stay within the Mandelbrot set."""
    x, y, steps = real, imag, 0 * real
    for _ in range(30):
        x, y = x * x - y * y + real, 2 * x * y + imag
        steps = steps + xp.where(x * x + y * y < 4, 1, 0)
    return steps


mandelbrot.inputs(lambda rng, n: [rng.uniform(-2, 0.5, n), rng.uniform(-1, 1, n)])

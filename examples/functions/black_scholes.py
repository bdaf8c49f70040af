import gpubench


@gpubench.function
def black_scholes(xp, spot, strike, years):
    """Prices of n European calls at 2 % interest and 30 % volatility."""

    def normal_cdf(x):
        return 0.5 * (1 + xp.tanh(0.79788456 * (x + 0.044715 * x * x * x)))

    deviation = 0.3 * xp.sqrt(years)
    d1 = (xp.log(spot / strike) + (0.02 + 0.045) * years) / deviation
    return spot * normal_cdf(d1) - strike * xp.exp(-0.02 * years) * normal_cdf(d1 - deviation)

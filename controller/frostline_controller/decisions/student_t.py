"""Student's t quantile for the guard's confidence bound: the controller's image carries no statistics library.

The distribution's tail is half the regularised incomplete beta function I_x(df/2, 1/2) at x = df / (df + t^2); the
function is evaluated by its continued fraction (Lentz's method) and the quantile found by bisection.
"""

import math

TINY = 1e-300
CONVERGED = 1e-15


def t_quantile(probability: float, degrees: float) -> float:
    """The value that a t variable of `degrees` (>= 1, not always whole) stays below with `probability` in (0.5, 1)."""
    assert 0.5 < probability < 1.0, f"probability is {probability}"
    assert degrees >= 1, f"degrees of freedom are {degrees}"
    tail = 1.0 - probability
    low, high = 0.0, 1.0
    while upper_tail(high, degrees) > tail:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if upper_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def upper_tail(t: float, degrees: float) -> float:
    """The probability that a t variable exceeds `t` >= 0."""
    return 0.5 * _incomplete_beta(degrees / (degrees + t * t), t * t / (degrees + t * t), 0.5 * degrees, 0.5)


def _incomplete_beta(x: float, complement: float, a: float, b: float) -> float:
    """I_x(a, b), with 1 - x given apart so that neither end loses digits."""
    if x <= 0.0 or complement <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(complement)
    front = math.exp(logarithm)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _continued_fraction(x, a, b) / a
    return 1.0 - front * _continued_fraction(complement, b, a) / b


def _continued_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of I_x(a, b): about sqrt(max(a, b)) terms where x is on the converging side."""
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        change = 1.0
        for term in (even, odd):
            d = 1.0 / _nonzero(1.0 + term * d)
            c = _nonzero(1.0 + term / c)
            change = c * d
            result *= change
        if abs(change - 1.0) < CONVERGED:
            break
    return result


def _nonzero(value: float) -> float:
    return value if abs(value) > TINY else TINY

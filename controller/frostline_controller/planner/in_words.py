"""Figures in words, as plans, reasons and pictures show them."""


def seconds_in_words(value: float) -> str:
    """Return the seconds with three digits: "1.25 s", or "38.2 ms" below one second."""
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"

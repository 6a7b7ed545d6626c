# SPDX-License-Identifier: Apache-2.0
"""Numbers as a person reads them."""


def number(value: float) -> str:
    """A number for an axis: 4 digits at most, 3e-4 rather than 0.0003."""
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.6g}" if abs(value) >= 1000 else f"{value:.4g}"


def scaled(value: float | None) -> str:
    """5717416 -> 5.72 M, 1.26e9 -> 1.26 G, 0.43 -> 0.43."""
    if value is None:
        return "n/a"
    for limit, size, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(value) >= limit:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def duration(seconds: float | None) -> str:
    """8042 -> 2 h 14 min."""
    if seconds is None:
        return "n/a"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"

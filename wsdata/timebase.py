"""Exact media time: integer pts with a rational time base. No floats."""

from fractions import Fraction


def round_half_up(value: Fraction) -> int:
    """Round to the nearest integer, halves upward (Python's own round goes to even)."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def pts_to_ms(pts: int, time_base: Fraction) -> int:
    """Milliseconds of a pts, rounded to nearest."""
    return round_half_up(pts * time_base * 1000)


def num_output_frames(duration: Fraction, fps: Fraction) -> int:
    """Frames that a span of `duration` seconds shows at `fps`.

    Frame k is shown at k / fps, and is inside while k / fps < duration.
    """
    if duration <= 0:
        return 0
    return -((-duration * fps).__floor__())

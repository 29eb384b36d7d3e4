"""Student's t distribution: how far a mean of few may be off."""

from leadline.core.estimate import NORMAL_90

_T_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)  # for 1 to 10 degrees of freedom


def student_90(freedom: int) -> float:
    """Return the two-sided 90 % quantile of Student's t."""
    # From 11 degrees of freedom on it is Cornish and Fisher's expansion.
    if freedom <= len(_T_90):
        return _T_90[freedom - 1]
    return expand_student_90(freedom)


def expand_student_90(freedom: int) -> float:
    """Return the expansion of the quantile for many degrees (Abramowitz and Stegun, 26.7.5)."""
    z = NORMAL_90
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)

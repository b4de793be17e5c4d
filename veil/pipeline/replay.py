"""What the recommended timeout would have changed over the past that was analysed."""

from __future__ import annotations

from veil.core.findings import Replay
from veil.pipeline.candidates import TIMEOUT_MAX_S, evaluate
from veil.pipeline.history import middle_s
from veil.pipeline.recommendation import Evidence


def replay(evidence: Evidence, recommended_s: int) -> Replay:
    """The same leases and the same crashes again, under the recommended timeout.

    The wait after a crash is measured from the holder's last sign of life, which it survived by some unknown time; the
    expected length of that is taken off. What a message waited beyond its deadline until somebody received it is nobody's
    timeout's fault, and stays.
    """
    history, curve = evidence.history, evidence.curve
    (means,) = evaluate(curve, evidence.timelines, [recommended_s], evidence.policy)
    recovered = history.recovery.total()
    measured_s = sum(count * middle_s(bucket) for bucket, count in history.recovery.items())
    if not recovered:
        then_s, with_s = 0.0, 0.0
    elif not history.windows:
        then_s, with_s = measured_s, recovered * means.recovery_s
    else:
        leases = history.windows.total()
        mean_s = sum(length_ms * count for length_ms, count in history.windows.items()) / leases / 1000
        waited_s = max(measured_s / recovered - mean_s, 0.0)
        window_s = max(1, min(round(mean_s), TIMEOUT_MAX_S))
        (then,) = evaluate(curve, evidence.timelines, [window_s], evidence.policy)
        then_s = recovered * (then.recovery_s + waited_s)
        with_s = recovered * (means.recovery_s + waited_s)
    return Replay(
        duplicates_then=history.duplicates,
        duplicates_with_recommended=history.leases * means.duplicate_chance,
        hidden_hours_then=then_s / 3600,
        hidden_hours_with_recommended=with_s / 3600,
    )

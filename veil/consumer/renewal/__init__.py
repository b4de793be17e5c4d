"""Keeping leases: policies that say when to renew a window and for how long, and keepers that do it.

The policies are pure. The keepers are imported from their own modules, so that choosing a policy stays light.
"""

from veil.consumer.renewal.policies import (
    Adaptive,
    Buffered,
    Heartbeat,
    NoRenewal,
    RenewalPolicy,
    RenewalRefused,
    RenewalWarning,
)

__all__ = [
    "Adaptive",
    "Buffered",
    "Heartbeat",
    "NoRenewal",
    "RenewalPolicy",
    "RenewalRefused",
    "RenewalWarning",
]

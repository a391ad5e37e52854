"""How many examples a property test tries when the number of the profile does not suit it."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import HealthCheck, settings

QUICK = "quick"  # the profile of `make check`


def examples(count: int, allowed: Collection[HealthCheck] = ()) -> settings:
    """So many in a full run; in a quick one no more than its profile has."""
    if settings.get_current_profile_name() == QUICK:
        count = min(count, settings.default.max_examples)
    checks = (*settings.default.suppress_health_check, *allowed)
    return settings(max_examples=count, suppress_health_check=checks)

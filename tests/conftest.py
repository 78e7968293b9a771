"""Hypothesis on busy machines: how long an example takes says nothing about the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("ktae", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ktae")

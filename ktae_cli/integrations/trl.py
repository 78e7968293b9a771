"""KTAE inside TRL: a trainer with token-level advantages, one that trains on saved rollouts, and a recorder."""

from ktae_cli.integrations._trl_advantages import token_advantages
from ktae_cli.integrations._trl_offline import saved_rollouts
from ktae_cli.integrations._trl_recorder import record

__all__ = ["record", "saved_rollouts", "token_advantages"]

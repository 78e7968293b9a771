"""KTAE inside verl: advantage estimators for its registry, a recorder of its rollouts, and saved rollouts as its batch.

verl imports this module where a run names it, `actor_rollout_ref.model.external_lib=ktae_cli.integrations.verl`, and
then `algorithm.adv_estimator` may be `ktae`, `ktae_bounded` or `ktae_loo`. Where verl is not loaded the import
registers nothing: call `register`.
"""

import sys

from ktae_cli.integrations._verl_advantages import register
from ktae_cli.integrations._verl_recorder import record
from ktae_cli.integrations._verl_saved import load_dataproto, write_replay

__all__ = ["load_dataproto", "record", "register", "write_replay"]

if "verl" in sys.modules:
    register()

"""The table that `ktae tokens` writes."""

import numpy as np
import pyarrow as pa

from ktae_cli.evidence.incidence import Incidence
from ktae_cli.evidence.unit_tests import TestedUnits
from ktae_cli.units.base import Vocabulary

_WHOLE, _REAL = pa.int64(), pa.float64()
SCHEMA = pa.schema(
    {
        "unit": pa.string(), "token_id": pa.int32(), "n_groups": _WHOLE, "n_prompts": _WHOLE,
        "correct_with": _WHOLE, "incorrect_with": _WHOLE, "n_correct": _WHOLE, "n_incorrect": _WHOLE,
        "odds_ratio": _REAL, "ci_low": _REAL, "ci_high": _REAL,
        "p_value": _REAL, "p_mid": _REAL, "q_value": _REAL,
        "p_given_length": _REAL, "p_mid_given_length": _REAL, "q_given_length": _REAL,
        "p_fwer": _REAL, "heterogeneity": _REAL, "heterogeneity_p": _REAL,
        "sign_stability": _REAL, "rank_low": _REAL, "rank_high": _REAL, "mean_key_weight": _REAL, "class": pa.string(),
    }
)  # fmt: skip


def unit_table(
    incidence: Incidence, tested: TestedUnits, vocabulary: Vocabulary, classes: list[str], kept: np.ndarray
) -> pa.Table:
    """Return one row a unit, those of smallest p in the headline's test first; a figure that does not exist is null.

    kept (n_units,) bool: units that have a row.
    """
    codes = incidence.code.tolist()
    p = tested.columns[tested.headline_p]
    order = np.lexsort((incidence.code, -tested.columns["n_groups"], np.nan_to_num(p, nan=2.0)))
    order = order[kept[order]]
    named = {
        "unit": [vocabulary.name(codes[at]) for at in order.tolist()],
        "token_id": [vocabulary.token_id(codes[at]) for at in order.tolist()],
        "class": [classes[at] for at in order.tolist()],
    }
    columns = []
    for field in SCHEMA:
        if field.name in named:
            columns.append(pa.array(named[field.name], field.type))
        else:
            values = tested.columns[field.name][order]
            absent = np.isnan(values) if values.dtype.kind == "f" else None
            columns.append(pa.array(values, mask=absent).cast(field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMA)

"""The class of every unit, with the facts of the data that the rules ask for."""

import numpy as np

from ktae_cli.evidence.incidence import Incidence, Informative, only_units
from ktae_cli.plan import Plan
from ktae_cli.readers.base import column_at, root_of
from ktae_cli.token_text import BytesDecoder, plain_text
from ktae_cli.units.base import Vocabulary
from ktae_cli.units.classes import class_of, majority_script


def classes_of(incidence: Incidence, vocabulary: Vocabulary, plan: Plan, kept: np.ndarray) -> list[str]:
    """Return the class of each unit of kept (n_units,) bool, empty for the others; see `ktae_cli.units.classes`."""
    classes = np.full(incidence.n_units, "", object)
    classes[kept] = _classes_of(only_units(incidence, kept), vocabulary, plan)
    return classes.tolist()


def _classes_of(incidence: Incidence, vocabulary: Vocabulary, plan: Plan) -> list[str]:
    codes = incidence.code.tolist()
    texts = [vocabulary.text(code) for code in codes]
    script = majority_script(texts, incidence.occurrences.tolist())
    repetition = _repetition(incidence, vocabulary)
    copied = _copied(incidence, texts, prompt_texts(plan, incidence.rollouts))
    special = [_is_special(vocabulary.token_id(code), plan) for code in codes]
    facts = zip(texts, special, repetition.tolist(), copied.tolist(), strict=True)
    return [class_of(t, special=s, script=script, repetition=r, copied=c) for t, s, r, c in facts]


def _is_special(token_id: int | None, plan: Plan) -> bool:
    decoder = plan.decoder
    if token_id is None:
        return False
    return token_id in plan.eos_ids or (isinstance(decoder, BytesDecoder) and decoder.token(token_id).kind == "special")


def _repetition(incidence: Incidence, vocabulary: Vocabulary) -> np.ndarray:
    """Return tokens in a unit's occurrences / counted tokens of the rollouts that hold it (n_units,)."""
    held = np.bincount(incidence.unit, incidence.length[incidence.rollout], incidence.n_units)
    ids = getattr(vocabulary, "ids", None)
    size = np.array([len(ids(code)) for code in incidence.code.tolist()]) if ids else 1
    return incidence.occurrences * size / np.maximum(held, 1)


def _copied(incidence: Incidence, texts: list[str], prompts: list[str] | None) -> np.ndarray:
    """Return the share of the rollouts with a unit whose prompt holds its text without the blanks around it."""
    if prompts is None:
        return np.zeros(incidence.n_units)
    group = incidence.rollouts.strata.group[incidence.rollout]
    cell, count = np.unique(incidence.unit.astype(np.int64) * len(prompts) + group, return_counts=True)
    unit, group = np.divmod(cell, len(prompts))
    bare = [text.strip() for text in texts]
    holds = np.array(
        [bool(bare[u]) and bare[u] in prompts[g] for u, g in zip(unit.tolist(), group.tolist(), strict=True)], bool
    )
    return np.bincount(unit, count * holds, incidence.n_units) / np.maximum(
        np.bincount(unit, count, incidence.n_units), 1
    )


def prompt_texts(plan: Plan, rollouts: Informative) -> list[str] | None:
    """Return the prompt of each group, from its text or its ids; None where the input has neither."""
    columns = plan.mapping.columns
    by_ids = "prompt" not in columns
    path = columns.get("prompt_ids" if by_ids else "prompt")
    if path is None:
        return None
    first = np.full(len(plan.index.keys), -1)
    first[rollouts.group_code] = np.arange(len(rollouts.group_code))
    texts: list[str | None] = [None] * len(rollouts.group_code)
    row = 0
    for batch in plan.source.batches([root_of(plan.source.schema, path)]):
        place = first[plan.index.codes[row : row + len(batch)]]
        place[plan.index.codes[row : row + len(batch)] < 0] = -1
        row += len(batch)
        new = [at for at in np.flatnonzero(place >= 0).tolist() if texts[place[at]] is None]
        if new:
            array = column_at(batch, path)
            for at in new:
                if texts[place[at]] is None:
                    value = array[at].as_py() or ""
                    texts[place[at]] = "".join(plain_text(plan.decoder, i) for i in value) if by_ids else value
    return [text or "" for text in texts]

"""Do the ids of two inputs stand for the same tokens? Where both tell, and they do not, units cannot be matched."""

import pyarrow as pa

from ktae_cli.errors import InputError
from ktae_cli.plan import Plan
from ktae_cli.readers.base import column_at, list_lengths, list_values, root_of
from ktae_cli.token_text import StoredDecoder, visible_token
from ktae_cli.units.base import TokenBatch
from ktae_cli.units.token import TokenVocabulary


def check_same_vocabulary(plans: list[Plan], names: tuple[str, str], unit: str) -> None:
    """Raise `InputError` where an id is one token in the first input and another in the second.

    Compared are the whole vocabularies of two tokenizers, or the first rows of two inputs that store their tokens'
    text; words and matches of stored text have no ids and may come from two vocabularies.
    """
    known = [_tokenizer_texts(plan) for plan in plans]
    remedy = ""
    if known == [None, None] and unit.partition(":")[0] in ("token", "ngram"):
        known, remedy = [_stored_texts(plan) for plan in plans], "; --unit word compares their words"
    if None in known:
        return
    first, second = known
    for token_id, text in first.items():
        if second.get(token_id, text) != text:
            ours, theirs = visible_token(text), visible_token(second[token_id])
            raise InputError(
                f"{names[0]} and {names[1]} have different vocabularies (id {token_id} is {ours} in the first, "
                f"{theirs} in the second): their tokens cannot be matched{remedy}"
            )


def _tokenizer_texts(plan: Plan) -> dict[int, str] | None:
    tokenizer = getattr(plan.decoder, "tokenizer", None)
    return None if tokenizer is None else {at: text for text, at in tokenizer.get_vocab().items()}


def _stored_texts(plan: Plan) -> dict[int, str] | None:
    """Return the texts that the first rows store for their ids."""
    if not isinstance(plan.decoder, StoredDecoder):
        return None
    paths = [plan.mapping.columns[name] for name in ("response_ids", "response_tokens")]
    roots = {root_of(plan.source.schema, path) for path in paths}
    batch = next(iter(plan.source.batches([name for name in plan.source.schema.names if name in roots])))
    ids, texts = (column_at(batch, path) for path in paths)
    fits = pa.array(list_lengths(ids)[0] == list_lengths(texts)[0])
    ids, texts = ids.filter(fits), texts.filter(fits)
    numbers = list_values(ids).fill_null(-1).to_numpy(zero_copy_only=False)
    vocabulary = TokenVocabulary(plan.decoder)
    vocabulary.see(TokenBatch(numbers, list_lengths(ids)[0], stored=list_values(texts)))
    return vocabulary.texts

"""Rollouts that hold text only: token ids made by encoding the text again, and marked as such."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ktae_cli.readers.base import column_at, root_of
from ktae_cli.tokenizer_file import open_tokenizer

RETOKENIZED = (
    "response_ids come from encoding {!r} again: they may differ from the sampled ids, end-of-text is missing, and a "
    "tool's tokens cannot be told apart; the column `retokenized` marks the rows"
)


class RetokenizedRollouts:
    """A source with `response_ids` and `retokenized` added to every row of another."""

    def __init__(self, source, text_path: str, tokenizer: Path):
        self.source, self.text_path, self.tokenizer = source, text_path, open_tokenizer(tokenizer)
        self.reader = source.reader
        self.paths = getattr(source, "paths", [])
        self.n_rows, self.place, self.own_metadata = source.n_rows, source.place, source.own_metadata
        self.fingerprints, self.row_names = source.fingerprints, source.row_names
        self.schema = source.schema.append(pa.field("response_ids", pa.list_(pa.int32()))).append(
            pa.field("retokenized", pa.bool_())
        )

    def bytes_of(self, columns: list[str]) -> int:
        """Return about how many bytes the columns take: the ids of a text as many as its characters."""
        held = {*self.schema.names} - {"response_ids", "retokenized"}
        own = [root_of(self.source.schema, self.text_path)] if "response_ids" in columns else []
        return self.source.bytes_of([*(set(columns) & held), *own])

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows; the text is encoded where the ids are asked for."""
        names = self.schema.names if columns is None else columns
        own = {"response_ids", "retokenized"}
        roots = [name for name in names if name not in own]
        root = root_of(self.source.schema, self.text_path)
        read = roots if root in roots or not own & set(names) else [*roots, root]
        for batch in self.source.batches(None if columns is None else read):
            made = {name: batch.column(name) for name in roots}
            if "response_ids" in names:
                made["response_ids"] = self._encode(column_at(batch, self.text_path))
            if "retokenized" in names:
                made["retokenized"] = pa.array([True] * len(batch))
            yield pa.RecordBatch.from_pydict({name: made[name] for name in names})

    def _encode(self, texts: pa.Array) -> pa.Array:
        found = texts.cast(pa.large_string()).to_pylist()
        encoded = self.tokenizer.encode_batch_fast([text or "" for text in found], add_special_tokens=False)
        ids = [None if text is None else item.ids for text, item in zip(found, encoded, strict=True)]
        return pa.array(ids, pa.list_(pa.int32()))

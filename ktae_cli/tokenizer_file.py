"""The tokenizer as a file: opening it, and which of its ids end a text."""

from pathlib import Path

from ktae_cli.errors import PrerequisiteError

END_OF_TEXT = (
    "<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|end|>", "<|eom_id|>", "</s>", "<eos>",
    "<end_of_turn>", "<|return|>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
"""Names that the model families in use give to the token that ends a response."""


def open_tokenizer(path: Path):
    """Open a tokenizer.json, or the one in a directory; raise `PrerequisiteError` when it cannot be read."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise PrerequisiteError(f"no tokenizer at {file}: give a tokenizer.json or a directory that holds one")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust side raises plain Exception
        raise PrerequisiteError(f"cannot read the tokenizer {file}: {str(error).splitlines()[0]}") from None


def end_of_text_ids(decoder) -> tuple[int, ...]:
    """Return the end-of-text ids that a decoder's tokenizer names; () without a tokenizer."""
    tokenizer = getattr(decoder, "tokenizer", None)
    ids = [] if tokenizer is None else [tokenizer.token_to_id(name) for name in END_OF_TEXT]
    return tuple(i for i in ids if i is not None)

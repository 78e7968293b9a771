"""KT003: text, but no token ids."""

from collections.abc import Iterator

from ktae_cli.checks._rows import Input
from ktae_cli.checks.base import Finding, rule


@rule(id="KT003", needs=(), severity="warning", sees="input")
def no_token_ids(input: Input) -> Iterator[Finding]:
    """The input has no token ids of the responses.

    Encoding the text again gives other ids than those that were sampled wherever the policy did not take the
    tokenizer's own split, so advantages land on other tokens. Have the trainer write ids; to look at such a dump all
    the same, give `score` --tokenizer, and do not train on the result.
    """
    if not input.has("response_ids"):
        if input.has("response"):
            yield Finding(
                "no token ids of the responses: `score` needs --tokenizer PATH to encode the text, and may get other "
                "ids than were sampled"
            )
        else:
            yield Finding("no token ids of the responses, and no text; name them with --map response_ids=COLUMN")

"""OpenAI-style responses, also of vLLM: one response body a line, or the output file of a batch."""

import math
import re
from collections.abc import Iterator
from typing import Any

from ktae_cli.errors import InputError
from ktae_cli.readers._equal_lengths import unequal
from ktae_cli.readers._fields import as_label, as_list, as_object, place
from ktae_cli.readers._finish_reasons import finish_reason
from ktae_cli.readers._messages import text_of
from ktae_cli.readers.base import ReaderOptions, Record, reader

_TOKEN_ID = re.compile(r"token_id:(\d{1,10})")
_LONE = "requests with a single choice, each a group of its own"


@reader(
    files=(".jsonl",),
    shape="lines",
    keys=(),
    supplies=(
        "group_id", "rollout_id", "response", "prompt_ids", "response_ids", "response_tokens", "rollout_log_probs",
        "finish_reason",
    ),
)  # fmt: skip
def openai(records: Iterator[Record], options: ReaderOptions) -> Iterator[dict[str, Any]]:
    """Read responses of the completions and chat completions API with several choices, and batch outputs of them.

    Source: vLLM `entrypoints/openai/completion/protocol.py`; the batch wrapper is read from public forks. A group is
    one request: its `custom_id` in a batch, else the response's `id`. Token ids are there with vLLM's
    `return_token_ids`, or where its log-probs name tokens as `token_id:<id>`; log-probs where they were asked for.
    Responses hold no reward and no verdict, and those without prompt ids no prompt. What a reasoning parser took off
    the text stands in `reasoning_content`. Failed requests of a batch are left out and counted.
    """
    for record in records:
        body, request = _body(record, options)
        choices = as_list(body.get("choices"), "choices", record)
        key = as_label(body.get("id") if request is None else request, "custom_id" if request else "id", record)
        if len(choices) == 1:
            options.count(_LONE)
        for i, choice in enumerate(choices):
            choice = as_object(choice, "a choice", record)
            number = choice.get("index") if choice.get("index") is not None else i
            row = {"group_id": key}
            if isinstance(body.get("id"), str):
                row["rollout_id"] = f"{body['id']}/{number}"
            row |= _response(choice, record) | _tokens(choice, body, record)
            lists = {name: row.get(name) for name in ("response_ids", "response_tokens", "rollout_log_probs")}
            if unequal(lists, record, options, f"{key}, choice {number}"):
                continue
            yield row | {"choice": number, "model": body.get("model")}


def _body(record: Record, options: ReaderOptions) -> tuple[dict[str, Any], Any]:
    """Return (the response body, the batch's custom_id or None); the body of a failed request is empty."""
    value = record.value
    if "choices" in value:
        return value, None
    response = as_object(value.get("response"), "response", record)
    body = as_object(response.get("body"), "response.body", record)
    if "choices" not in body:
        if value.get("error") is None and not body.get("error") and response.get("status_code", 200) == 200:
            raise InputError(f"{place(record)}: neither a response with choices nor an error of a batch request")
        options.count("failed requests of a batch left out")
    return body, value.get("custom_id") or value.get("id")


def _response(choice: dict[str, Any], record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"finish_reason": finish_reason(choice.get("finish_reason"))}
    if "message" not in choice:
        return {"response": text_of(choice.get("text"))} | row
    message = as_object(choice["message"], "message", record)
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return {"response": text_of(message)} | row | ({"reasoning_content": reasoning} if reasoning else {})


def _tokens(choice: dict[str, Any], body: dict[str, Any], record: Record) -> dict[str, Any]:
    """Return the ids of prompt and response, the tokens' texts and their log-probs, as far as they are there."""
    row: dict[str, Any] = {}
    prompt_ids = choice.get("prompt_token_ids") or body.get("prompt_token_ids")
    if prompt_ids:
        row["prompt_ids"] = prompt_ids
    if choice.get("token_ids") is not None:
        row["response_ids"] = as_list(choice["token_ids"], "token_ids", record)
    found = as_object(choice.get("logprobs"), "logprobs", record)
    if isinstance(found.get("content"), list):
        entries = [as_object(entry, "a token of logprobs", record) for entry in found["content"]]
        tokens, values = [e.get("token") for e in entries], [e.get("logprob") for e in entries]
    else:
        tokens = as_list(found.get("tokens"), "logprobs.tokens", record)
        values = as_list(found.get("token_logprobs"), "logprobs.token_logprobs", record)
    if values:
        row["rollout_log_probs"] = [math.nan if value is None else value for value in values]
    ids = [_TOKEN_ID.fullmatch(token) if isinstance(token, str) else None for token in tokens]
    if tokens and all(ids):
        row.setdefault("response_ids", [int(match[1]) for match in ids])
    elif tokens:
        row["response_tokens"] = tokens
    return row


def _fits(record: dict[str, Any]) -> bool:
    choices = record.get("choices")
    if isinstance(choices, list):
        return all(isinstance(choice, dict) and ("text" in choice or "message" in choice) for choice in choices)
    return "custom_id" in record and "response" in record and "error" in record


openai.fits = _fits

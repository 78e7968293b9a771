"""The frameworks' words for how a response ended, as the four canonical ones."""

from typing import Any

_WORDS = {
    "stop": ("stop", "eos", "end_turn", "stop_sequence", "tool_calls", "tool_use", "function_call", "env_done"),
    "length": (
        "length", "max_tokens", "model_length", "context_length", "max_turns", "max_input_tokens", "max_output_tokens",
        "max_total_tokens", "max_response_length_exceeded", "max_prompt_length_exceeded", "max_turns_exceeded",
        "truncated",
    ),
    "abort": ("abort", "aborted", "timeout", "content_filter", "cancelled"),
    "error": ("error", "failed"),
}  # fmt: skip
_CANONICAL = {word: reason for reason, words in _WORDS.items() for word in words}


def finish_reason(word: Any) -> str | None:
    """Return stop, length, abort or error; None where the dump says nothing or says something else."""
    return _CANONICAL.get(word.lower()) if isinstance(word, str) else None

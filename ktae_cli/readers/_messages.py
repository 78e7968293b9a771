"""Chat messages as one text."""

import json
from typing import Any


def text_of(value: Any) -> str | None:
    """Return a prompt or completion as text, whatever its container.

    Text stays as it is. One message gives its content. Several give `role: content` each, with a blank line between
    them; in a completion, which the assistant begins, what the assistant wrote stands without its role. Tool calls
    follow the content of their message as JSON; parts that are no text stand as `[type]`.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return message_text(value)
    if isinstance(value, list):
        if len(value) == 1:
            return text_of(value[0])
        bare = "assistant" if value and _role(value[0]) == "assistant" else None
        return "\n\n".join(_with_role(message, bare) for message in value)
    return str(value)


def message_text(message: dict[str, Any]) -> str:
    """Return the content of one message, its tool calls after it."""
    pieces = [content_text(message.get("content"))]
    calls = message.get("tool_calls")
    if calls:
        pieces += [_call_text(call) for call in (calls if isinstance(calls, list) else [calls])]
    return "\n".join(piece for piece in pieces if piece)


def content_text(content: Any) -> str:
    """Return the content of a message: text, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(_part_text(part) for part in content)
    return _part_text(content) if isinstance(content, dict) else str(content)


def _with_role(message: Any, bare: str | None) -> str:
    role, text = _role(message), text_of(message) or ""
    return f"{role}: {text}" if role and role != bare else text


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return str(part)
    for name in ("text", "reasoning", "refusal"):
        if isinstance(part.get(name), str):
            return part[name]
    return f"[{part.get('type', 'part')}]"


def _call_text(call: Any) -> str:
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        call = {name: call["function"].get(name) for name in ("name", "arguments")}
    return call if isinstance(call, str) else json.dumps(call, ensure_ascii=False, default=str)

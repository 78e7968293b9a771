"""A trace of prime-rl or verifiers v1: a graph of messages, and the token sequences along its paths."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ktae_cli.errors import InputError
from ktae_cli.readers._equal_lengths import unequal
from ktae_cli.readers._fields import as_list, as_object, kind_of, place
from ktae_cli.readers._messages import content_text, text_of
from ktae_cli.readers._sequences import as_flags, cut_at_first_sampled, spread
from ktae_cli.readers.base import ReaderOptions, Record

_COMPACT = {
    "logprobs": "rollout_log_probs",
    "reference_logprobs": "ref_log_probs",
    "advantages": "trainer_advantages",
}


class Node(NamedTuple):
    """One message: `lists` are values of its sampled tokens alone, `mask` (n_tokens,) is true at these."""

    parent: int | None
    message: dict[str, Any]
    sampled: bool
    token_ids: list[int]
    mask: np.ndarray
    lists: dict[str, list[float]]


def nodes_of(trace: dict[str, Any], record: Record, options: ReaderOptions) -> list[Node] | None:
    """Return the checked nodes of a trace, or None for one that `--on-mismatch drop` leaves out."""
    nodes = []
    for i, raw in enumerate(as_list(trace.get("nodes"), "nodes", record)):
        raw = as_object(raw, f"node {i}", record)
        ids = as_list(raw.get("token_ids"), f"token_ids of node {i}", record)
        sampled = bool(raw.get("sampled"))
        flags = raw.get("mask") or ([sampled] * len(ids) if ids else [])
        mask = as_flags(flags, f"mask of node {i}", record)
        if unequal({"token_ids": ids, "mask": mask}, record, options, f"trace {trace.get('id')}, node {i}"):
            return None
        lists = {name: as_list(raw.get(name), name, record) for name in _COMPACT if raw.get(name)}
        n_sampled = np.empty(int(mask.sum()))
        if unequal({"sampled tokens": n_sampled, **lists}, record, options, f"trace {trace.get('id')}, node {i}"):
            return None
        message = as_object(raw.get("message"), f"message of node {i}", record)
        nodes.append(Node(_parent(raw.get("parent"), i, record), message, sampled, ids, mask, lists))
    return nodes


def _parent(parent: Any, node: int, record: Record) -> int | None:
    if parent is None or (type(parent) is int and 0 <= parent < node):
        return parent
    found = parent if isinstance(parent, int) else kind_of(parent)
    raise InputError(f"{place(record)}: the parent of node {node} is {found}, expected an earlier node")


def paths_of(nodes: list[Node]) -> Iterator[list[int]]:
    """Yield the nodes from root to leaf of every leaf, in the order of the leaves; one empty path without nodes."""
    parents = {node.parent for node in nodes}
    if not nodes:
        yield []
    for leaf in range(len(nodes)):
        if leaf in parents:
            continue
        path, at = [], leaf
        while at is not None:
            path.append(at)
            at = nodes[at].parent
        yield path[::-1]


def sequence_of(path: list[Node], record: Record) -> dict[str, Any]:
    """Return the columns of one path: token ids cut at the first sampled one, mask, turns, log-probs and texts.

    Lists of sampled tokens (log-probs, advantages) get 0.0 at the tokens between; where one node with sampled tokens
    lacks such a list, the path has none. A turn begins with each sampled message; what answers it belongs to it. A
    trace without token ids (a relay client wrote it) has texts alone.
    """
    row = _texts(path)
    ids = list(chain.from_iterable(node.token_ids for node in path))
    if not ids and any(node.message for node in path):
        return row
    mask = np.concatenate([np.zeros(0, bool), *(node.mask for node in path)])
    cut = cut_at_first_sampled(mask, "mask", record)
    row |= {"prompt_ids": ids[: cut.start], "response_ids": ids[cut.start :], "response_mask": cut.response_mask}
    turns = np.maximum(np.cumsum([node.sampled for node in path]) - 1, 0)
    row["turn_ids"] = np.repeat(turns, [len(node.token_ids) for node in path]).astype(np.int64)[cut.start :]
    writers = [node for node in path if node.mask.any()]
    for name, canonical in _COMPACT.items():
        if writers and all(name in node.lists for node in writers):
            values = chain.from_iterable(node.lists[name] for node in writers)
            row[canonical] = spread(list(values), mask)[cut.start :]
    return row


def _texts(path: list[Node]) -> dict[str, str | None]:
    """Return the messages before the first sampled one as prompt, the contents from there on as response."""
    first = next((i for i, node in enumerate(path) if node.sampled), len(path))
    prompt = text_of([node.message for node in path[:first]]) if first else None
    response = "".join(content_text(node.message.get("content")) for node in path[first:])
    return {"prompt": prompt, "response": response}

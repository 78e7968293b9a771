"""Rollouts whose units are known: groups written out, and groups drawn with a unit planted."""

import numpy as np
import pyarrow as pa


def table(groups: list[list[tuple[list[int], float]]], **columns) -> pa.Table:
    """Return groups of (ids, reward), each with a prompt of its own."""
    rows = [(f"g{g}", ids, reward) for g, group in enumerate(groups) for ids, reward in group]
    base = {
        "group_id": [name for name, _, _ in rows],
        "prompt": [f"prompt {name}" for name, _, _ in rows],
        "rollout_id": [f"{name}/{i}" for i, (name, _, _) in enumerate(rows)],
        "response_ids": pa.array([ids for _, ids, _ in rows], pa.list_(pa.int32())),
        "reward": [reward for _, _, reward in rows],
    }
    return pa.table(base | columns)


def planted(
    n_groups: int, seed: int, *, right: float = 0.6, wrong: float = 0.4, size: int = 8, vocabulary: int = 60
) -> pa.Table:
    """Return groups in which id 1 stands in so many right and wrong rollouts; everything else is noise."""
    random = np.random.default_rng(seed)
    groups = []
    for _ in range(n_groups):
        verdicts = random.permutation(np.arange(size) < random.integers(2, size - 1))
        group = []
        for verdict in verdicts.tolist():
            ids = random.integers(2, vocabulary, random.integers(10, 30)).tolist()
            if random.random() < (right if verdict else wrong):
                ids.insert(int(random.integers(len(ids))), 1)
            group.append((ids, float(verdict)))
        groups.append(group)
    return table(groups)

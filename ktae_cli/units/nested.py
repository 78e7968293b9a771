"""N-grams that are one event: one holds the other, and they occur in the same rollouts."""

from collections.abc import Iterator, Sequence

import numpy as np


def drop_nested(
    ids: Sequence[tuple[int, ...]], unit: np.ndarray, rollout: np.ndarray, p_value: np.ndarray, share: float = 0.9
) -> np.ndarray:
    """Tell which n-grams stay, one for each event (n_units,) bool.

    ids: the token ids of each n-gram. (unit, rollout): the pairs that occur, each once, in any order. p_value
    (n_units,): NaN counts as 1.
    Two n-grams are linked where one holds the other and the rarer occurs in at least `share` as many rollouts; links
    form nests. The best of a nest stays: the smallest p, then the longest, then the smallest ids; all others of the
    nest leave whose rollouts overlap with its own by at least `share` (Jaccard: common by all). What is left of the
    nest is judged again. An n-gram without rollouts is in no nest.
    """
    n_units = len(ids)
    order = np.argsort(unit, kind="stable")
    rollouts = np.unique(rollout[order], return_inverse=True)[1]
    sizes = np.bincount(unit, minlength=n_units)
    of_unit = np.split(rollouts, np.cumsum(sizes)[:-1]) if n_units else []
    p_value = np.where(np.isnan(p_value), 1.0, p_value)
    keep = np.ones(n_units, bool)
    marked = np.zeros(len(rollouts), np.int64)
    for nest in _nests(ids, sizes, share):
        left = sorted(nest, key=lambda at: (p_value[at], -len(ids[at]), ids[at]))
        while len(left) > 1:
            best, others = left[0], np.array(left[1:])
            marked[of_unit[best]] = 1
            common = np.add.reduceat(marked[np.concatenate([of_unit[at] for at in others])], _offsets(sizes[others]))
            marked[of_unit[best]] = 0
            same = common >= share * (sizes[best] + sizes[others] - common)
            keep[others[same]] = False
            left = others[~same].tolist()
    return keep


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _nests(ids: Sequence[tuple[int, ...]], sizes: np.ndarray, share: float) -> Iterator[list[int]]:
    """Yield the connected groups of linked n-grams that have more than one member."""
    number = {gram: at for at, gram in enumerate(ids)}
    root = list(range(len(ids)))

    def root_of(at: int) -> int:
        while root[at] != at:
            root[at] = at = root[root[at]]
        return at

    for at, gram in enumerate(ids):
        for part in _parts(gram):
            other = number.get(part)
            if other is not None and min(sizes[at], sizes[other]) >= share * max(sizes[at], sizes[other], 1):
                root[root_of(other)] = root_of(at)
    nests: dict[int, list[int]] = {}
    for at in range(len(ids)):
        nests.setdefault(root_of(at), []).append(at)
    yield from (nest for nest in nests.values() if len(nest) > 1)


def _parts(gram: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for size in range(1, len(gram)):
        for start in range(len(gram) - size + 1):
            yield gram[start : start + size]

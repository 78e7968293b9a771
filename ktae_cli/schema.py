"""The canonical rollout table as data: what readers yield and every command accepts."""

from dataclasses import dataclass

SCHEMA_VERSION = 1
METADATA_KEY = b"ktae"


@dataclass(frozen=True)
class Column:
    """One canonical column: `level` is "rollout" or "token" (a list as long as response_ids)."""

    name: str
    dtype: str
    meaning: str
    level: str = "rollout"
    aliases: tuple[str, ...] = ()


COLUMNS = (
    Column(
        "group_id",
        "string",
        "rollouts that share it form one group",
        aliases=("uid", "prompt_id", "problem_id", "example_id", "doc_id", "question_id"),
    ),
    Column("rollout_id", "string", "one sampled trajectory; `<file>:<row>` when absent"),
    Column("prompt", "string", "text of the prompt"),
    Column("response", "string", "text of the response", aliases=("completion", "output")),
    Column("prompt_ids", "list<int32>", "token ids of the prompt"),
    Column(
        "response_ids",
        "list<int32>",
        "token ids of the response, padding removed, end-of-text kept",
        "token",
        ("completion_ids", "output_ids", "output_tokens", "response_tokens"),
    ),
    Column("response_tokens", "list<string>", "stored text of each response token", "token"),
    Column("response_mask", "list<bool>", "true where the policy sampled the token; null is all true", "token"),
    Column("reward", "float64", "the trainer's scalar reward", aliases=("score",)),
    Column("correct", "bool", "the verdict; present and null is unknown", aliases=("acc", "is_correct")),
    Column("rollout_log_probs", "list<float32>", "log-probabilities from the engine that sampled", "token"),
    Column("old_log_probs", "list<float32>", "the trainer's log-probabilities for the sampling policy", "token"),
    Column("old_entropy", "list<float32>", "entropy of the sampling policy at each position, nats", "token"),
    Column("log_probs", "list<float32>", "log-probabilities under a later policy", "token"),
    Column("entropy", "list<float32>", "entropy of a later policy at each position, nats", "token"),
    Column("ref_log_probs", "list<float32>", "log-probabilities under a reference policy", "token"),
    Column("sum_pi_squared", "list<float32>", "sum of squared probabilities of the policy at each position", "token"),
    Column("positive_log_probs", "list<float32>", "log-probabilities under a model of right rollouts", "token"),
    Column("negative_log_probs", "list<float32>", "log-probabilities under a model of wrong rollouts", "token"),
    Column("contrast_log_z", "list<float32>", "log of the normaliser of the two models' contrast", "token"),
    Column("token_rewards", "list<float32>", "reward of each token", "token"),
    Column("rewards", "map<string, float64>", "named parts of the reward"),
    Column("turn_ids", "list<int32>", "turn of each token in a multi-turn rollout", "token"),
    Column("ground_truth", "string", "the right answer", aliases=("gold", "gts", "answer")),
    Column("finish_reason", "string", "stop, length, abort or error"),
    Column("step", "int64", "training step"),
    Column("reader", "string", "which reader produced the row"),
)
BY_NAME = {column.name: column for column in COLUMNS}

# Where a column is absent, methods that need it take the other one and say so.
STAND_INS = {"old_log_probs": "rollout_log_probs"}

# A uid names the prompt of one policy snapshot by itself; the others repeat at every step.
UID_COLUMNS = ("group_id", "uid")

# Columns that `score` writes; an input column of such a name moves aside.
SCORE_COLUMNS = ("advantages", "key_weight")
SCORE_PREFIXES = (
    "adv_", "key_weight_", "ratio_", "grad_weight_", "loss_weight_", "kl_", "mask_", "kl_mask_", "contrast_",
)  # fmt: skip


def is_score_column(name: str) -> bool:
    """Tell whether `score` may write a column of this name."""
    return name not in BY_NAME and (name in SCORE_COLUMNS or name.startswith(SCORE_PREFIXES))


def holds_flags(result: str) -> bool:
    """Tell whether a result of an estimator (`mask`, `kl_mask`) is true or false at each token, not a number."""
    return result in ("mask", "kl_mask")

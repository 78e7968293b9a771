"""What `ktae export --to verl` wrote, as verl holds it: a DataProto, or rollouts that its v1 trainer replays."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

_IDS = {"uid": "group_ids", "rollout_id": "rollout_ids"}
_VERDICTS = {1: True, 0: False, -1: None}


def load_dataproto(path: str | os.PathLike) -> Any:
    """Return the `DataProto` of a file that `ktae export --to verl` wrote.

    Its `batch` holds the tensors of the file, its `non_tensor_batch` `uid`, the group, `rollout_id` and `acc`, the
    verdict (None = unknown), and its `meta_info` the metadata of the export: alignment, spec, source.
    """
    import numpy as np
    from safetensors import safe_open
    from verl import DataProto

    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    objects = {name: json.loads(metadata.pop(key)) for name, key in _IDS.items()}
    objects["acc"] = [_VERDICTS[value] for value in tensors.pop("correct").tolist()]
    objects = {name: np.array(values, object) for name, values in objects.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors=objects, meta_info=metadata)


def write_replay(path: str | os.PathLike, directory: str | os.PathLike, step: int) -> Path:
    """Write the rollouts of a verl export where verl's v1 trainer looks for those of a step; return the folder.

    With `skip.rollout_tq.enable=true skip.rollout_tq.steps=[STEP]` the trainer then generates nothing in that step: it
    takes the saved groups, one for each prompt of its batch and over again where there are more prompts, and
    `rollout.n` rollouts of each. It computes log-probs and advantages itself; with `algorithm.adv_estimator=ktae` these
    are those of the saved tokens, rewards and verdicts.

    directory: `<dump_dir>/<experiment_name>_<project_name>/GBS<batch>_N<n>_in<prompt>_out<response>` of the run, with
    its data.gen_batch_size or data.train_batch_size, rollout.n, data.max_prompt_length and data.max_response_length.
    Source: verl 0.9.1 `verl/utils/skip/rollout_skip.py` (`RolloutTqSkip`), `verl/trainer/ppo/v1/agent_loop_tq.py`.
    """
    import torch
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    data = load_dataproto(path)
    rows = [_trajectory(data, i) for i in range(len(data))]
    sessions: dict[str, int] = {}
    keys, tags = [], []
    for row in rows:
        keys.append(f"{row['uid']}_{sessions.setdefault(row['uid'], 0)}_0")
        sessions[row["uid"]] += 1
        lengths = {"prompt_len": len(row["prompts"]), "response_len": len(row["responses"])}
        steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), step)
        tags.append({"status": "success", **lengths, "seq_len": sum(lengths.values()), **steps})
    folder = Path(directory) / str(step) / "0"
    folder.mkdir(parents=True, exist_ok=True)
    payload = {"tensordict": list_of_dict_to_tensordict(rows), "tags": tags, "keys": keys, "global_steps": step}
    torch.save(payload, folder / "tq_batch.pt")
    (folder / "meta.json").write_text(json.dumps({"global_steps": step, "num_trajectories": len(keys)}))
    return folder


def _trajectory(data: Any, i: int) -> dict[str, Any]:
    """Return a rollout without padding, under the names of verl's agent loop."""
    one, objects = data.batch[i], data.non_tensor_batch
    attended, width = one["attention_mask"].bool(), one["prompts"].shape[0]
    inside = attended[width:]
    mask = one["response_mask"][inside]
    verdict = objects["acc"][i]
    row = {
        "prompts": one["prompts"][attended[:width]],
        "responses": one["responses"][inside],
        "input_ids": one["input_ids"][attended],
        "position_ids": one["position_ids"][attended],
        "response_mask": mask,
        "loss_mask": mask,
        "multi_modal_inputs": {},
        "num_turns": 2,
        # verl splits keys at underscores
        "uid": hashlib.sha256(str(objects["uid"][i]).encode()).hexdigest()[:32],
        "extra_fields": {"reward_extra_info": {"acc": verdict}},
    }
    names = {"token_level_scores": "rm_scores", "rollout_log_probs": "rollout_log_probs"}
    return row | {new: one[old][inside] for old, new in names.items() if old in data.batch.keys()}  # noqa: SIM118

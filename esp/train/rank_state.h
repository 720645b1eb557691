// State in checkpoints that differs by rank or replica, in addition to the model and the optimizer state.
//
// `exchange.*`: error feedback and estimates of compressed gradient exchanges, as one row per rank, or as one vector if
// all ranks share it. Reused if the number of ranks and the compression settings are the same; otherwise it starts at
// 0.
//
// `scales.rank-N`: FP8 scales. Reused if the layout and the number of ranks are the same.
//
// `copies.*`, for divergent replicas. The model in such a checkpoint is the mean of the replicas, and the optimizer
// state is that of the first replica, so any number of ranks and any method can start from it. In addition each replica
// stores its own values, optimizer state and strategy state, as rows of tensors [replicas, elements] named by model
// part. If layout and method are the same, each replica restores its row and continues exactly as before.
#pragma once

#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"
#include "esp/train/run_config.h"

namespace esp::train {

void add_rank_state(ckpt::Snapshot& snapshot, Engine& engine, const SyncSection& sync);
// Call it after everything else was restored. If the checkpoint does not have this state, or has that of another
// layout, nothing is restored and all replicas start equal. Returns a note for the log, or empty.
std::string load_rank_state(Engine& engine, const SyncSection& sync, const ckpt::Checkpoint& checkpoint);

}  // namespace esp::train

// Checkpoints of what ranks remember beside the model and the optimizer's state.
//
// Errors and estimates of compressed exchanges stand as `exchange.*` beside the rest: rows by rank, or one vector where
// ranks have it together. The same exchanges among as many ranks find theirs; others begin at 0.
//
// Scales of 8-bit products stand as `scales.rank-N`; the same layout among as many ranks finds them.
//
// Of copies that go their own ways:
// The model of such a checkpoint is the mean of the copies, and its optimizer state the first copy's: any number of
// ranks, by any method, can begin with them. Beside them stands what each copy has to itself, values and optimizer
// state and what its strategy remembers, as rows of tensors [copies, elements] that name the part of the model they are
// of. The same layout and method finds its rows and goes on as if it had never stopped.
#pragma once

#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"
#include "esp/train/run_config.h"

namespace esp::train {

void add_own_state(ckpt::Snapshot& snapshot, Engine& engine, const SyncSection& sync);
// After everything else was restored. Nothing where the checkpoint has no such state, or has it of other copies: all
// then begin alike. Returns what is to be said of that, or nothing.
std::string load_own_state(Engine& engine, const SyncSection& sync, const ckpt::Checkpoint& checkpoint);

}  // namespace esp::train

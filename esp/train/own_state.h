// Checkpoints of copies that go their own ways.
//
// The model of such a checkpoint is the mean of the copies, and its optimizer state the first copy's: any number of
// ranks, by any method, can begin with them. Beside them stands what each copy has to itself, values and optimizer
// state and what its strategy remembers, as rows of tensors [copies, elements] that name the part of the model they are
// of. The same layout and method finds its rows and goes on as if it had never stopped.
#pragma once

#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"

namespace esp::train {

void add_own_state(ckpt::Snapshot& snapshot, Engine& engine);
// After everything else was restored. Nothing where the checkpoint has no such state, or has it of other copies: all
// then begin alike.
void load_own_state(Engine& engine, const ckpt::Checkpoint& checkpoint);

}  // namespace esp::train

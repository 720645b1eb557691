// The engine's state as a checkpoint, and back: parameters, optimizer state by parameter, counters, loss scale, and the
// run file it was made with. The data cursor is the step: sample order is a function of it.
#pragma once

#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"

namespace esp::train {

ckpt::Snapshot snapshot_of(Engine& engine, const RunConfig& config);

// Restores everything, so that going on equals never having stopped, bit for bit. A converted checkpoint has no
// optimizer state: moments begin anew. IoError when the checkpoint is of another model; UsageError when the run file
// asks for another optimizer.
void restore(Engine& engine, const RunConfig& config, const ckpt::Checkpoint& checkpoint);

// Parameters only, from a checkpoint of the same architecture.
void load_parameters(nn::ParameterList& parameters, const ckpt::Checkpoint& checkpoint);

ckpt::Piece piece_of(const nn::Parameter& parameter);  // the whole of it

}  // namespace esp::train

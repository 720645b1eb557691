// The engine's state as a checkpoint, and back: parameters, optimizer state by parameter, counters, loss scale, and the
// run file it was made with. The data cursor is the step: sample order is a function of it.
//
// Of several ranks each makes the snapshot of what its strategy holds, and all write together; pieces carry global
// names and places, so that any number of ranks, dividing the model and sharing it in any way, restores it.
#pragma once

#include <span>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/sync/strategy.h"
#include "esp/train/engine.h"

namespace esp::train {

ckpt::Snapshot snapshot_of(Engine& engine, const RunConfig& config);

// Restores everything, so that going on equals never having stopped, bit for bit. A converted checkpoint has no
// optimizer state: moments begin anew. IoError when the checkpoint is of another model; UsageError when the run file
// asks for another optimizer. Returns what could not be restored and begins anew, in a line; mostly nothing.
std::string restore(Engine& engine, const RunConfig& config, const ckpt::Checkpoint& checkpoint);

// The parameters of a run about to begin, from a checkpoint or a Hugging Face folder. The head may be new: returns the
// parameters held here that `path` does not have.
// `left_out`, where given, gets the tensors that the model has no place for.
std::vector<std::string> begin_with(Engine& engine, const RunConfig& config, const std::string& path,
                                    std::vector<std::string>* left_out = nullptr);

// Parameters only, from a checkpoint of the same architecture, a unit at a time.
void load_parameters(sync::Strategy& strategy, const ckpt::Checkpoint& checkpoint);
// The state of what this rank updates, by the optimizer's own ranges.
void load_states(optim::Optimizer& optimizer, const nn::ParameterList& parameters, const ckpt::Checkpoint& checkpoint);

ckpt::Piece piece_of(const nn::Parameter& parameter);  // the whole of it
// What is held, parameter by parameter and section by section: the whole of one, or the run of its elements that the
// range meets. What does not lie together is copied into memory of `packing` (of divided models only).
std::vector<ckpt::Piece> model_pieces(const nn::ParameterList& parameters, std::span<const optim::ValueShard> held,
                                      const tensor::Context& packing = {});
// The state of the held elements, so that a state that several ranks keep is written once. What is held must be
// updated here.
std::vector<ckpt::Piece> optimizer_pieces(optim::Optimizer& optimizer, const nn::ParameterList& parameters,
                                          std::span<const optim::ValueShard> held, const tensor::Context& packing = {});

}  // namespace esp::train

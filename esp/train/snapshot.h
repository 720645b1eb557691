// Converts the engine's state to a checkpoint and back: parameters, optimizer state by parameter, counters, loss scale,
// and the run file. The step is also the data cursor, because the order of samples is a function of the step.
//
// Each rank makes a snapshot of the state that its strategy holds, and all ranks write together. Slices have global
// names and positions, so they can be restored with any number of ranks, any layout and any sharding.
#pragma once

#include <span>
#include <vector>

#include "esp/ckpt/checkpoint.h"
#include "esp/sync/strategy.h"
#include "esp/train/engine.h"

namespace esp::train {

ckpt::Snapshot make_snapshot(Engine& engine, const RunConfig& config);

// Restores the whole state, so that training continues bit for bit as if it had not stopped. A converted checkpoint has
// no optimizer state: then the moments start at 0. IoError if the checkpoint belongs to another model; UsageError if
// the run file has another optimizer. Returns a note about state that could not be restored; usually empty.
std::string restore(Engine& engine, const RunConfig& config, const ckpt::Checkpoint& checkpoint);

// Loads the initial parameters of a new run from a checkpoint or a Hugging Face folder. The head may be missing there:
// returns the names of this rank's parameters that `path` does not have. `left_out`, if given, gets the names of
// tensors that the model does not use.
std::vector<std::string> init_from_pretrained(Engine& engine, const RunConfig& config, const std::string& path,
                                              std::vector<std::string>* left_out = nullptr);

// Loads only the parameters, unit by unit, from a checkpoint of the same architecture.
void load_parameters(sync::Strategy& strategy, const ckpt::Checkpoint& checkpoint);
// Loads the optimizer state of this rank: the ranges that its optimizer has.
void load_optimizer_states(optim::Optimizer& optimizer, const nn::ParameterList& parameters,
                           const ckpt::Checkpoint& checkpoint);

ckpt::TensorSlice whole_slice(const nn::Parameter& parameter);  // one slice that is the whole parameter
// Slices of the values that this rank holds, by parameter and section. A slice is a whole parameter or the part of it
// in a held range. Elements that are not contiguous are copied into memory of `packing` (sharded models only).
std::vector<ckpt::TensorSlice> model_slices(const nn::ParameterList& parameters,
                                            std::span<const optim::ValueShard> held,
                                            const tensor::Context& packing = {});
// Slices of the optimizer state of the held elements only, so that state kept by several ranks is written once. This
// rank must have the optimizer state of all elements that it holds.
std::vector<ckpt::TensorSlice> optimizer_slices(optim::Optimizer& optimizer, const nn::ParameterList& parameters,
                                                std::span<const optim::ValueShard> held,
                                                const tensor::Context& packing = {});

}  // namespace esp::train

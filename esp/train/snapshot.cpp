#include "esp/train/snapshot.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/ckpt/steps.h"
#include "esp/device/gpu.h"
#include "esp/train/rank_state.h"
#include "esp/train/shard_sections.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

// Calls f(parameter, begin, end, part) for each parameter that overlaps `range`. [begin, end) are the elements of the
// parameter in the range, and `part` contains their values. `values` contains the values of the whole range, flat.
template <typename F>
void for_each_parameter(const nn::ParameterList& parameters, const optim::UnitRange& range,
                        const tensor::Tensor& values, F&& f) {
  for (const nn::Parameter* p : parameters.units()[static_cast<size_t>(range.unit)].parameters) {
    const int64_t begin = std::max(range.begin, p->offset);
    const int64_t end = std::min(range.end, p->offset + p->count());
    if (begin < end) f(*p, begin - p->offset, end - p->offset, values.slice(begin - range.begin, end - range.begin));
  }
}

tensor::OffloadReader from(const tensor::OffloadReader& read, int64_t begin) {
  if (!read || begin == 0) return read;
  return [read, begin](int64_t first, const tensor::Tensor& to) { read(begin + first, to); };
}

// If several model-parallel ranks have the same parameter, only one of them writes it.
void add_slices(std::vector<ckpt::TensorSlice>& slices, const nn::ParameterList& parameters,
                const optim::ValueShard& held, const std::string& prefix, const tensor::Context& packing) {
  for_each_parameter(
      parameters, held.range, held.values,
      [&](const nn::Parameter& p, int64_t begin, int64_t end, const tensor::Tensor& of) {
        if (!p.counted) return;
        const tensor::OffloadReader read = from(held.read, p.offset + begin - held.range.begin);
        for (ckpt::TensorSlice& slice : parameter_slices(p, prefix + p.name, begin, end, of, packing, read))
          slices.push_back(std::move(slice));
      });
}

std::string prefix_of(const optim::OptimizerState& state) {
  return fmt::format("optimizer.{}.", state.slot);
}

}  // namespace

ckpt::TensorSlice whole_slice(const nn::Parameter& parameter) {
  ckpt::TensorSlice slice;
  slice.name = parameter.name;
  slice.global_shape = parameter.shape;
  slice.values = parameter.weight.value;
  return slice;
}

std::vector<ckpt::TensorSlice> model_slices(const nn::ParameterList& parameters,
                                            std::span<const optim::ValueShard> held, const tensor::Context& packing) {
  std::vector<ckpt::TensorSlice> slices;
  for (const optim::ValueShard& one : held) add_slices(slices, parameters, one, "", packing);
  return slices;
}

std::vector<ckpt::TensorSlice> optimizer_slices(optim::Optimizer& optimizer, const nn::ParameterList& parameters,
                                                std::span<const optim::ValueShard> held,
                                                const tensor::Context& packing) {
  std::vector<ckpt::TensorSlice> slices;
  // for each slot (m, v, master, …), the number of elements that have this state
  std::map<std::string_view, int64_t> covered;
  int64_t num_held = 0;
  for (const optim::ValueShard& one : held) num_held += one.range.end - one.range.begin;
  for (const optim::OptimizerState& state : optimizer.states()) {
    int64_t& num_covered = covered[state.slot];
    for (const optim::ValueShard& one : held) {
      const optim::UnitRange both{state.range.unit, std::max(state.range.begin, one.range.begin),
                                  std::min(state.range.end, one.range.end)};
      if (one.range.unit != both.unit || both.begin >= both.end) continue;
      num_covered += both.end - both.begin;
      const int64_t skip = both.begin - state.range.begin;
      add_slices(slices, parameters,
                 {both, state.values.slice(skip, both.end - state.range.begin), from(state.read, skip)},
                 prefix_of(state), packing);
    }
  }
  // Each slot must have all elements. Otherwise the checkpoint would silently lack state.
  for (const auto& [slot, count] : covered)
    ESP_CHECK(count == num_held,
              "optimizer state {}: got {} elements on this rank; expected the {} elements that this rank writes", slot,
              count, num_held);
  return slices;
}

ckpt::Snapshot make_snapshot(Engine& engine, const RunConfig& config) {
  ckpt::Snapshot snapshot;
  snapshot.step = engine.num_steps();
  for (ParameterGroup& group : engine.parameter_groups()) {
    const std::vector<optim::ValueShard> held = group.strategy->checkpoint_shards();
    const auto add = [](std::vector<ckpt::TensorSlice>& to, std::vector<ckpt::TensorSlice> slices) {
      for (ckpt::TensorSlice& slice : slices) to.push_back(std::move(slice));
    };
    add(snapshot.model, model_slices(*group.parameters, held, engine.host()));
    add(snapshot.optimizer, optimizer_slices(*group.optimizer, *group.parameters, held, engine.host()));
  }
  snapshot.state = {{"step", engine.num_steps()},
                    {"optimizer", config.train.optimizer},
                    {"optimizer_steps", engine.optimizer().num_steps()},
                    {"next_sample", engine.next_sample()},
                    {"loss_scale", engine.loss_scale().scale()},
                    {"good_steps", engine.loss_scale().good_steps()},
                    {"seed", config.run.seed},
                    {"tokenizer", config.data.tokenizer},
                    {"run", to_toml(config)}};
  add_rank_state(snapshot, engine, config.sync);
  return snapshot;
}

void load_parameters(sync::Strategy& strategy, const ckpt::Checkpoint& checkpoint) {
  strategy.fill([&](nn::ParameterList::Unit& unit) {
    for (const nn::Parameter* p : unit.parameters)
      read_slices(*p, p->name, 0, p->count(), unit.values.slice(p->offset, p->offset + p->count()),
                  [&](const ckpt::TensorSlice& slice) { checkpoint.read(slice); });
  });
}

void load_optimizer_states(optim::Optimizer& optimizer, const nn::ParameterList& parameters,
                           const ckpt::Checkpoint& checkpoint) {
  // A checkpoint with the mean of divergent replicas may have no master weights. Then its values are the master
  // weights.
  const bool of_mean = checkpoint.state().contains("copies");
  std::vector<std::byte> passing;
  for (const optim::OptimizerState& state : optimizer.states()) {
    tensor::Tensor whole = state.values;
    if (state.write) {
      passing.assign(state.values.bytes(), std::byte{0});
      whole = tensor::Tensor::borrow(passing.data(), state.values.shape(), state.values.dtype());
    }
    for_each_parameter(parameters, state.range, whole,
                       [&](const nn::Parameter& p, int64_t begin, int64_t end, const tensor::Tensor& values) {
                         std::string name = prefix_of(state) + p.name;
                         if (of_mean && !checkpoint.has(name)) name = p.name;
                         read_slices(p, name, begin, end, values,
                                     [&](const ckpt::TensorSlice& slice) { checkpoint.read(slice); });
                       });
    if (state.write) state.write(whole);
  }
}

namespace {

// Reads a count from the manifest's state. The value is checked, because the state is untrusted input: a checksum can
// match any content.
int64_t count_in(const Json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end() || !found->is_number_integer() || *found < 0 || *found > ckpt::kMaxStep)
    throw IoError(fmt::format("manifest.json: state.{}: got {}; expected an integer from 0 to {}", key,
                              found == state.end() ? "nothing" : found->dump(), ckpt::kMaxStep));
  return found->get<int64_t>();
}

double loss_scale_in(const Json& state) {
  const auto found = state.find("loss_scale");
  if (found == state.end() || !found->is_number())
    throw IoError(fmt::format("manifest.json: state.loss_scale: got {}; expected a number",
                              found == state.end() ? "nothing" : found->dump()));
  return found->get<double>();
}

}  // namespace

std::string restore(Engine& engine, const RunConfig& config, const ckpt::Checkpoint& checkpoint) {
  const Json& state = checkpoint.state();
  const bool has_states = state.contains("optimizer");
  if (has_states && state["optimizer"] != config.train.optimizer)
    throw UsageError(
        fmt::format("train.optimizer = {}: the checkpoint was made with {}. Use that optimizer, or --resume none",
                    config.train.optimizer, state["optimizer"].dump()));
  for (ParameterGroup& group : engine.parameter_groups()) {
    load_parameters(*group.strategy, checkpoint);
    if (!has_states) {
      group.optimizer->refresh_master();
      continue;
    }
    load_optimizer_states(*group.optimizer, *group.parameters, checkpoint);
    group.optimizer->set_num_steps(count_in(state, "optimizer_steps"));
    group.optimizer->states_restored();
  }
  if (state.contains("copies") && !state.at("copies").at("equal").get<bool>())
    for (ParameterGroup& group : engine.parameter_groups()) group.optimizer->refresh_master();
  if (!has_states) {
    engine.resume_at(checkpoint.step());
    return {};
  }
  engine.loss_scale().restore(loss_scale_in(state), count_in(state, "good_steps"));
  engine.resume_at(checkpoint.step());
  return load_rank_state(engine, config.sync, checkpoint);
}

// If no rank holds the whole values, the file is first read into temporary host memory, and the shards are copied from
// there.
std::vector<std::string> init_from_pretrained(Engine& engine, const RunConfig& config, const std::string& path,
                                              std::vector<std::string>* left_out) {
  std::vector<std::string> fresh;
  {
    std::vector<tensor::Tensor> whole;
    for (ParameterGroup& group : engine.parameter_groups()) {
      nn::ParameterList& list = *group.parameters;
      if (group.on_device) group.strategy->begin_pass({false, true});  // copies the host values to the device
      if (group.on_device || list.units().front().values.defined()) continue;
      const tensor::Tensor& all = whole.emplace_back(tensor::empty(
          engine.host(), {list.count()}, storage_type(config.train.precision), device::MemoryCategory::parameter));
      for (auto& unit : list.units()) {
        list.bind_values(unit, all.slice(unit.first, unit.first + unit.count));
        list.initialise(unit, static_cast<uint64_t>(config.run.seed), engine.context().stream);
      }
    }
    fresh = load_pretrained(engine.model(), path, engine.context().stream, left_out);
    for (size_t i = 0; i < whole.size(); ++i)  // `whole` has either all groups or none
      engine.parameter_groups()[i].strategy->fill([&](nn::ParameterList::Unit& unit) {
        std::memcpy(unit.values.data(), whole[i].slice(unit.first, unit.first + unit.count).data(),
                    unit.values.bytes());
      });
  }
  engine.host().pool->trim();
  for (ParameterGroup& group : engine.parameter_groups()) {
    if (group.on_device)  // the model was loaded to the device, but the optimizer updates the parameters on the host
      group.strategy->fill([&](nn::ParameterList::Unit& unit) {
        const auto at = static_cast<size_t>(&unit - group.parameters->units().data());
        device::transfer(unit.values.data(), group.on_device->units()[at].values.data(), unit.values.bytes());
      });
    group.optimizer->refresh_master();
  }
  return fresh;
}

}  // namespace esp::train

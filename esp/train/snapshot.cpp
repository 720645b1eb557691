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
#include "esp/train/loaded.h"
#include "esp/train/own_state.h"
#include "esp/train/sections.h"

namespace esp::train {
namespace {

// f(parameter, begin, end, values) for each parameter that `range` meets: its elements [begin, end), of the `values`
// that lie flat over the range.
template <typename F>
void for_each_parameter(const nn::ParameterList& parameters, const optim::UnitRange& range,
                        const tensor::Tensor& values, F&& f) {
  for (const nn::Parameter* p : parameters.units()[static_cast<size_t>(range.unit)].parameters) {
    const int64_t begin = std::max(range.begin, p->offset);
    const int64_t end = std::min(range.end, p->offset + p->count());
    if (begin < end) f(*p, begin - p->offset, end - p->offset, values.slice(begin - range.begin, end - range.begin));
  }
}

tensor::ReadRun from(const tensor::ReadRun& read, int64_t begin) {
  if (!read || begin == 0) return read;
  return [read, begin](int64_t first, const tensor::Tensor& to) { read(begin + first, to); };
}

// Of what several holders of the model have copies of, one writes.
void add_pieces(std::vector<ckpt::Piece>& pieces, const nn::ParameterList& parameters, const optim::ValueShard& held,
                const std::string& prefix, const tensor::Context& packing) {
  for_each_parameter(parameters, held.range, held.values,
                     [&](const nn::Parameter& p, int64_t begin, int64_t end, const tensor::Tensor& of) {
                       if (!p.counted) return;
                       const tensor::ReadRun read = from(held.read, p.offset + begin - held.range.begin);
                       for (ckpt::Piece& piece : pieces_of(p, prefix + p.name, begin, end, of, packing, read))
                         pieces.push_back(std::move(piece));
                     });
}

std::string prefix_of(const optim::OptimizerState& state) {
  return fmt::format("optimizer.{}.", state.slot);
}

}  // namespace

ckpt::Piece piece_of(const nn::Parameter& parameter) {
  ckpt::Piece piece;
  piece.name = parameter.name;
  piece.global_shape = parameter.shape;
  piece.values = parameter.weight.value;
  return piece;
}

std::vector<ckpt::Piece> model_pieces(const nn::ParameterList& parameters, std::span<const optim::ValueShard> held,
                                      const tensor::Context& packing) {
  std::vector<ckpt::Piece> pieces;
  for (const optim::ValueShard& one : held) add_pieces(pieces, parameters, one, "", packing);
  return pieces;
}

std::vector<ckpt::Piece> optimizer_pieces(optim::Optimizer& optimizer, const nn::ParameterList& parameters,
                                          std::span<const optim::ValueShard> held, const tensor::Context& packing) {
  std::vector<ckpt::Piece> pieces;
  std::map<std::string_view, int64_t> covered;  // elements, by slot
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
      add_pieces(pieces, parameters,
                 {both, state.values.slice(skip, both.end - state.range.begin), from(state.read, skip)},
                 prefix_of(state), packing);
    }
  }
  // Otherwise state would be missing from the checkpoint, and nobody would know before it is needed.
  for (const auto& [slot, count] : covered)
    ESP_CHECK(count == num_held, "of {} elements that this rank writes it keeps the {} of {}", num_held, slot, count);
  return pieces;
}

ckpt::Snapshot snapshot_of(Engine& engine, const RunConfig& config) {
  ckpt::Snapshot snapshot;
  snapshot.step = engine.num_steps();
  for (Holding& holding : engine.holdings()) {
    const std::vector<optim::ValueShard> held = holding.strategy->held();
    const auto add = [](std::vector<ckpt::Piece>& to, std::vector<ckpt::Piece> pieces) {
      for (ckpt::Piece& piece : pieces) to.push_back(std::move(piece));
    };
    add(snapshot.model, model_pieces(*holding.parameters, held, engine.host()));
    add(snapshot.optimizer, optimizer_pieces(*holding.optimizer, *holding.parameters, held, engine.host()));
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
  add_own_state(snapshot, engine, config.sync);
  return snapshot;
}

void load_parameters(sync::Strategy& strategy, const ckpt::Checkpoint& checkpoint) {
  strategy.fill([&](nn::ParameterList::Unit& unit) {
    for (const nn::Parameter* p : unit.parameters)
      fill_pieces(*p, p->name, 0, p->count(), unit.values.slice(p->offset, p->offset + p->count()),
                  [&](const ckpt::Piece& piece) { checkpoint.read(piece); });
  });
}

void load_states(optim::Optimizer& optimizer, const nn::ParameterList& parameters, const ckpt::Checkpoint& checkpoint) {
  const bool of_mean = checkpoint.state().contains("copies");  // it may have no master copy: the values are it
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
                         fill_pieces(p, name, begin, end, values,
                                     [&](const ckpt::Piece& piece) { checkpoint.read(piece); });
                       });
    if (state.write) state.write(whole);
  }
}

namespace {

// The manifest's state may be anything that its checksum fits.
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
    throw UsageError(fmt::format("train.optimizer = {}: the checkpoint was made with {}; use that, or --resume none",
                                 config.train.optimizer, state["optimizer"].dump()));
  for (Holding& holding : engine.holdings()) {
    load_parameters(*holding.strategy, checkpoint);
    if (!has_states) {
      holding.optimizer->refresh_master();
      continue;
    }
    load_states(*holding.optimizer, *holding.parameters, checkpoint);
    holding.optimizer->set_num_steps(count_in(state, "optimizer_steps"));
    holding.optimizer->states_restored();
  }
  if (state.contains("copies") && !state.at("copies").at("equal").get<bool>())
    for (Holding& holding : engine.holdings()) holding.optimizer->refresh_master();
  if (!has_states) {
    engine.resume_at(checkpoint.step());
    return {};
  }
  engine.loss_scale().restore(loss_scale_in(state), count_in(state, "good_steps"));
  engine.resume_at(checkpoint.step());
  return load_own_state(engine, config.sync, checkpoint);
}

// Where values are nowhere whole, the file is read into memory of the host that lives until the shards are cut.
std::vector<std::string> begin_with(Engine& engine, const RunConfig& config, const std::string& path,
                                    std::vector<std::string>* left_out) {
  std::vector<std::string> fresh;
  {
    std::vector<tensor::Tensor> whole;
    for (Holding& holding : engine.holdings()) {
      nn::ParameterList& list = *holding.parameters;
      if (holding.on_device) holding.strategy->begin_pass({false, true});  // its values go up
      if (holding.on_device || list.units().front().values.defined()) continue;
      const tensor::Tensor& all = whole.emplace_back(tensor::empty(
          engine.host(), {list.count()}, storage_type(config.train.precision), device::MemoryCategory::parameter));
      for (auto& unit : list.units()) {
        list.bind_values(unit, all.slice(unit.first, unit.first + unit.count));
        list.initialise(unit, static_cast<uint64_t>(config.run.seed), engine.context().stream);
      }
    }
    fresh = load_initial(engine.model(), path, engine.context().stream, left_out);
    for (size_t i = 0; i < whole.size(); ++i)  // all of them lie elsewhere, or none
      engine.holdings()[i].strategy->fill([&](nn::ParameterList::Unit& unit) {
        std::memcpy(unit.values.data(), whole[i].slice(unit.first, unit.first + unit.count).data(),
                    unit.values.bytes());
      });
  }
  engine.host().pool->trim();
  for (Holding& holding : engine.holdings()) {
    if (holding.on_device)  // the model was read to the device: what is updated is the host's
      holding.strategy->fill([&](nn::ParameterList::Unit& unit) {
        const auto at = static_cast<size_t>(&unit - holding.parameters->units().data());
        device::transfer(unit.values.data(), holding.on_device->units()[at].values.data(), unit.values.bytes());
      });
    holding.optimizer->refresh_master();
  }
  return fresh;
}

}  // namespace esp::train

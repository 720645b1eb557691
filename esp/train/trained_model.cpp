#include "esp/train/trained_model.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/kernel/elementwise.h"
#include "esp/model/counts.h"
#include "esp/model/hf_config.h"
#include "esp/obs/file.h"
#include "esp/train/convert_tokenizer.h"
#include "esp/train/convert_weights.h"
#include "esp/train/engine.h"
#include "esp/train/hf_settings.h"
#include "esp/train/shard_sections.h"
#include "esp/train/snapshot.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

RunConfig config_of(const ckpt::Checkpoint& checkpoint, const std::string& path) {
  const Json& state = checkpoint.state();
  if (!state.contains("run") || !state["run"].is_string())
    throw IoError(fmt::format("{}: manifest.json contains no run file (state.run)", path));
  RunConfig config =
      parse_resolved_config(state["run"].get<std::string>(), path + "/manifest.json", UnknownKeys::refuse);
  if (config.data.tokenizer != "byte") config.data.tokenizer = has_tokenizer_files(path) ? path : "";
  return config;
}

// Rejects sizes in config.json that are far too large for the tensors in the folder. The model may have up to 4 times
// as many elements as the tensors, because missing tensors are reported by name later.
void check_sizes(const ckpt::HfFolder& folder, const model::ModelConfig& c) {
  constexpr int64_t kMaxSizeFactor = 4;
  int64_t elements = 0;
  const auto names = folder.names();
  for (const std::string& name : names) elements += static_cast<int64_t>(folder.find(name)->entry->count());
  const auto fits = [&](int64_t a, int64_t b) {
    int64_t product = 0;
    return !__builtin_mul_overflow(a, b, &product) && product / kMaxSizeFactor <= elements;
  };
  const bool sound = c.layers <= kMaxSizeFactor * static_cast<int64_t>(names.size()) && fits(c.vocab, c.dim) &&
                     fits(c.dim, c.dim) && fits(c.dim, c.ffn_or_default()) && fits(c.dim, c.num_classes) &&
                     fits(c.dim, c.type_vocab) && (c.positions != model::Positions::learned || fits(c.seq_len, c.dim));
  if (!sound || model::parameter_count(c) / kMaxSizeFactor > elements)
    throw IoError(fmt::format(
        "{}: config.json: got {} layers, hidden_size {}, vocab_size {}, {} positions; the {} tensors in the "
        "folder have only {} elements in total. Download config.json and weights of the same model",
        folder.path(), c.layers, c.dim, c.vocab, c.seq_len, names.size(), elements));
}

RunConfig config_of_hf(const std::string& path) {
  const std::string file = path + "/" + ckpt::kHfConfigName;
  const Json json = parse_json(obs::read_whole_file(file, kMaxConfigBytes), file);
  model::ModelConfig shape;
  try {
    shape = model::config_from_hf(json);
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", path, error.what()));
  }
  check_sizes(ckpt::HfFolder(path), shape);
  RunConfig config;
  config.model = model_section(shape);
  config.run.name = fs::path(path).filename().empty() ? "converted" : fs::path(path).filename().string();
  config.data.tokenizer = has_tokenizer_files(path) ? path : "";
  return config;
}

void make_model(TrainedModel& loaded, DType dtype) {
  const model::ModelConfig shape = model_config(loaded.config.model);
  shape.check();
  loaded.model = model::make_model(shape);
  loaded.model->parameters().materialize(loaded.context, dtype, false);
  loaded.config.train.precision = precision_name(dtype);
}

void load_hf(TrainedModel& loaded, std::optional<DType> dtype) {
  loaded.config = config_of_hf(loaded.path);
  const model::ModelConfig shape = model_config(loaded.config.model);
  ckpt::HfFolder folder = open_hf_folder(loaded.path, shape);
  make_model(loaded, dtype.value_or(hf_storage_type(folder, shape)));
  loaded.unused_tensors =
      read_hf_weights(*loaded.model, folder, HeadPolicy::required, loaded.context.stream).unused_tensors;
}

// Returns the slice of the checkpoint to read for a parameter. For an fp32 parameter, it is the slice of the fp32
// master weights if the checkpoint has them.
ckpt::TensorSlice best_slice(const nn::Parameter& parameter, const ckpt::Checkpoint& checkpoint) {
  ckpt::TensorSlice slice = whole_slice(parameter);
  const std::string master = "optimizer.master." + parameter.name;
  if (slice.values.dtype() == DType::f32 && checkpoint.has(master)) slice.name = master;
  return slice;
}

void load_checkpoint(TrainedModel& loaded, std::optional<DType> dtype) {
  const auto checkpoint = ckpt::open_checkpoint(loaded.path);
  loaded.step = checkpoint->step();
  loaded.config = config_of(*checkpoint, loaded.path);
  make_model(loaded, dtype.value_or(storage_type(loaded.config.train.precision)));
  for (const nn::Parameter& p : loaded.model->parameters().all()) {
    checkpoint->read(best_slice(p, *checkpoint));
    const tensor::Tensor& values = p.weight.value;
    if (!kernel::all_finite(values.data(), values.count(), values.dtype(), loaded.context.stream))
      throw IoError(
          fmt::format("{}: {}: got values that are not finite (NaN or infinity); expected finite weights. "
                      "Use an earlier checkpoint",
                      loaded.path, p.name));
  }
}

}  // namespace

std::string resolve_checkpoint(const std::string& path, std::vector<std::string>* skipped) {
  if (path.empty())
    throw UsageError("checkpoint: got an empty path; expected a run folder, a checkpoint or a Hugging Face folder");
  if (fs::exists(path + "/manifest.json")) return path;
  std::vector<std::string> skipped_checkpoints;
  std::optional<std::string> found;
  for (const std::string& dir : {path + "/checkpoints", path})
    if (!found) found = ckpt::newest_complete(dir, &skipped_checkpoints);
  if (found) {
    if (skipped) *skipped = std::move(skipped_checkpoints);
    return *found;
  }
  const std::string links =
      skipped_checkpoints.empty() ? "" : fmt::format(". Skipped: {}", fmt::join(skipped_checkpoints, ", "));
  if (fs::exists(path + "/run.toml"))
    throw IoError(
        fmt::format("{}: got a run folder without a complete checkpoint; a run writes checkpoints at checkpoint.every, "
                    "at its end and on a signal. `espalier train {}/run.toml` resumes the run{}",
                    path, path, links));
  if (fs::exists(path + "/" + ckpt::kHfConfigName))
    throw IoError(
        fmt::format("{}: got a config.json without weights; expected model.safetensors or "
                    "model.safetensors.index.json. Download the rest of the folder, or save it with save_pretrained",
                    path));
  throw IoError(fmt::format(
      "{}: no complete checkpoint there; give a run folder, checkpoints/step-N of one, or a Hugging Face folder "
      "(config.json and model.safetensors){}",
      path, links));
}

RunConfig resolve_run_config(const std::string& path) {
  if (ckpt::is_hf_folder(path)) return config_of_hf(path);
  const std::string at = resolve_checkpoint(path);
  return config_of(*ckpt::open_checkpoint(at), at);
}

std::unique_ptr<TrainedModel> load_model(const std::string& path, const LoadOptions& options) {
  auto loaded =
      std::make_unique<TrainedModel>(options.threads > 0 ? options.threads : available_cores(), options.device);
  const bool hf = !path.empty() && ckpt::is_hf_folder(path);
  loaded->path = hf ? path : resolve_checkpoint(path, &loaded->skipped_checkpoints);
  hf ? load_hf(*loaded, options.dtype) : load_checkpoint(*loaded, options.dtype);
  if (const std::string& where = loaded->config.data.tokenizer; !where.empty())
    loaded->tokenizer = data::load_tokenizer(where);
  loaded->end_ids =
      end_token_ids(loaded->path, loaded->tokenizer ? loaded->tokenizer->special().eos : std::optional<int32_t>());
  return loaded;
}

const data::Tokenizer& require_tokenizer(const TrainedModel& loaded) {
  if (!loaded.tokenizer)
    throw UsageError(fmt::format(
        "{}: this folder has no tokenizer. Put tokenizer.json into it (or pass ids to eval with --ids FILE)",
        loaded.path));
  return *loaded.tokenizer;
}

std::vector<std::string> load_pretrained(model::Model& model, const std::string& path, const device::Stream& stream,
                                         std::vector<std::string>* left_out) {
  if (ckpt::is_hf_folder(path)) {
    ckpt::HfFolder folder = open_hf_folder(path, model.config());
    HfReadReport reading = read_hf_weights(model, folder, HeadPolicy::may_be_new, stream);
    if (left_out) *left_out = std::move(reading.unused_tensors);
    return std::move(reading.new_parameters);
  }
  std::vector<std::string> fresh;
  const auto checkpoint = ckpt::open_checkpoint(resolve_checkpoint(path));
  const auto load = [&](const nn::Parameter& parameter) {
    const ckpt::TensorSlice best = best_slice(parameter, *checkpoint);
    read_slices(parameter, best.name, 0, parameter.count(), best.values.reshape({parameter.count()}),
                [&](ckpt::TensorSlice slice) {
                  if (parameter.name == kPositionsName) {
                    slice.global_shape = checkpoint->shape_of(parameter.name);
                    if (slice.global_shape.rows() < parameter.shape.rows())
                      throw IoError(
                          fmt::format("{}: {} has shape {}; this model needs {}. model.seq_len may be "
                                      "smaller, not larger",
                                      path, parameter.name, slice.global_shape.text(), parameter.shape.text()));
                  }
                  // A slice without a box that has fewer elements than the tensor reads the first elements.
                  checkpoint->read(slice);
                });
  };
  for (const nn::Parameter& parameter : model.parameters().all()) {
    if (!checkpoint->has(parameter.name) && is_head_parameter(model, parameter)) {
      fresh.push_back(parameter.name);
    } else {
      load(parameter);
    }
  }
  if (model.experts())
    for (const nn::Parameter& parameter : model.experts()->all()) load(parameter);
  return fresh;
}

}  // namespace esp::train

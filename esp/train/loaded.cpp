#include "esp/train/loaded.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/model/counts.h"
#include "esp/model/hf_config.h"
#include "esp/obs/file.h"
#include "esp/train/convert_tokenizer.h"
#include "esp/train/convert_weights.h"
#include "esp/train/engine.h"
#include "esp/train/hf_settings.h"
#include "esp/train/sections.h"
#include "esp/train/snapshot.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

RunConfig config_of(const ckpt::Checkpoint& checkpoint, const std::string& path) {
  const Json& state = checkpoint.state();
  if (!state.contains("run") || !state["run"].is_string())
    throw IoError(fmt::format("{}: the manifest holds no run file", path));
  RunConfig config =
      parse_resolved_config(state["run"].get<std::string>(), path + "/manifest.json", UnknownKeys::refuse);
  if (config.data.tokenizer != "byte") config.data.tokenizer = has_tokenizer_files(path) ? path : "";
  return config;
}

// config.json may ask for any size; what is made is bounded by what the folder holds. A tensor too few is told by name
// later, so there is some room.
void check_sizes(const ckpt::HfFolder& folder, const model::ModelConfig& c) {
  constexpr int64_t kRoom = 4;
  int64_t elements = 0;
  const auto names = folder.names();
  for (const std::string& name : names) elements += static_cast<int64_t>(folder.find(name)->entry->count());
  const auto fits = [&](int64_t a, int64_t b) {
    int64_t product = 0;
    return !__builtin_mul_overflow(a, b, &product) && product / kRoom <= elements;
  };
  const bool sound = c.layers <= kRoom * static_cast<int64_t>(names.size()) && fits(c.vocab, c.dim) &&
                     fits(c.dim, c.dim) && fits(c.dim, c.ffn_or_default()) && fits(c.dim, c.num_classes) &&
                     fits(c.dim, c.type_vocab) && (c.positions != model::Positions::learned || fits(c.seq_len, c.dim));
  if (!sound || model::parameter_count(c) / kRoom > elements)
    throw IoError(
        fmt::format("{}: config.json tells of {} layers, hidden_size {}, a vocabulary of {} and {} positions, "
                    "but all {} tensors together have {} elements",
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

void make_model(LoadedModel& loaded, DType dtype) {
  const model::ModelConfig shape = model_config(loaded.config.model);
  shape.check();
  loaded.model = model::make_model(shape);
  loaded.model->parameters().materialize(loaded.context, dtype, false);
  loaded.config.train.precision = precision_name(dtype);
}

void load_hf(LoadedModel& loaded, std::optional<DType> dtype) {
  loaded.config = config_of_hf(loaded.path);
  const model::ModelConfig shape = model_config(loaded.config.model);
  ckpt::HfFolder folder = open_hf_folder(loaded.path, shape);
  make_model(loaded, dtype.value_or(hf_storage_type(folder, shape)));
  loaded.unknown = read_hf_weights(*loaded.model, folder, HeadMayBe::there, loaded.context.stream).unknown;
}

// A parameter's piece of the checkpoint; of its master copy, where there is one and it is what was asked for.
ckpt::Piece best_piece(const nn::Parameter& parameter, const ckpt::Checkpoint& checkpoint) {
  ckpt::Piece piece = piece_of(parameter);
  const std::string master = "optimizer.master." + parameter.name;
  if (piece.values.dtype() == DType::f32 && checkpoint.has(master)) piece.name = master;
  return piece;
}

void load_checkpoint(LoadedModel& loaded, std::optional<DType> dtype) {
  const auto checkpoint = ckpt::open_checkpoint(loaded.path);
  loaded.step = checkpoint->step();
  loaded.config = config_of(*checkpoint, loaded.path);
  make_model(loaded, dtype.value_or(storage_type(loaded.config.train.precision)));
  for (const nn::Parameter& p : loaded.model->parameters().all()) checkpoint->read(best_piece(p, *checkpoint));
}

}  // namespace

std::string checkpoint_at(const std::string& path, std::vector<std::string>* skipped) {
  if (path.empty())
    throw UsageError("checkpoint: got an empty path; expected a run folder, a checkpoint or a Hugging Face folder");
  if (fs::exists(path + "/manifest.json")) return path;
  std::vector<std::string> passed_over;
  std::optional<std::string> found;
  for (const std::string& dir : {path + "/checkpoints", path})
    if (!found) found = ckpt::newest_complete(dir, &passed_over);
  if (found) {
    if (skipped) *skipped = std::move(passed_over);
    return *found;
  }
  const std::string links = passed_over.empty() ? "" : fmt::format(". Passed over: {}", fmt::join(passed_over, ", "));
  if (fs::exists(path + "/run.toml"))
    throw IoError(
        fmt::format("{}: got a run folder without a complete checkpoint; a run writes them at checkpoint.every, "
                    "when it ends and on a signal. espalier train {}/run.toml resumes it{}",
                    path, path, links));
  if (fs::exists(path + "/" + ckpt::kHfConfigName))
    throw IoError(
        fmt::format("{}: got a config.json without model.safetensors or model.safetensors.index.json; expected "
                    "both. Download the rest of the folder, or save it with save_pretrained",
                    path));
  throw IoError(fmt::format(
      "{}: no complete checkpoint there; give a run folder, checkpoints/step-N of one, or a Hugging Face folder "
      "(config.json and model.safetensors){}",
      path, links));
}

RunConfig config_at(const std::string& path) {
  if (ckpt::is_hf_folder(path)) return config_of_hf(path);
  const std::string at = checkpoint_at(path);
  return config_of(*ckpt::open_checkpoint(at), at);
}

std::unique_ptr<LoadedModel> load_model(const std::string& path, const LoadOptions& options) {
  auto loaded =
      std::make_unique<LoadedModel>(options.threads > 0 ? options.threads : available_cores(), options.device);
  const bool hf = !path.empty() && ckpt::is_hf_folder(path);
  loaded->path = hf ? path : checkpoint_at(path, &loaded->passed_over);
  hf ? load_hf(*loaded, options.dtype) : load_checkpoint(*loaded, options.dtype);
  if (const std::string& where = loaded->config.data.tokenizer; !where.empty())
    loaded->tokenizer = data::load_tokenizer(where);
  loaded->end_ids =
      end_token_ids(loaded->path, loaded->tokenizer ? loaded->tokenizer->special().eos : std::optional<int32_t>());
  return loaded;
}

const data::Tokenizer& tokenizer_of(const LoadedModel& loaded) {
  if (!loaded.tokenizer)
    throw UsageError(fmt::format(
        "{}: there is no tokenizer; put its tokenizer.json there (eval also takes ids: --ids FILE)", loaded.path));
  return *loaded.tokenizer;
}

std::vector<std::string> load_initial(model::Model& model, const std::string& path, const device::Stream& stream,
                                      std::vector<std::string>* left_out) {
  if (ckpt::is_hf_folder(path)) {
    ckpt::HfFolder folder = open_hf_folder(path, model.config());
    HfReading reading = read_hf_weights(model, folder, HeadMayBe::new_too, stream);
    if (left_out) *left_out = std::move(reading.unknown);
    return std::move(reading.fresh);
  }
  std::vector<std::string> fresh;
  const auto checkpoint = ckpt::open_checkpoint(checkpoint_at(path));
  const auto load = [&](const nn::Parameter& parameter) {
    const ckpt::Piece best = best_piece(parameter, *checkpoint);
    fill_pieces(parameter, best.name, 0, parameter.count(), best.values.reshape({parameter.count()}),
                [&](ckpt::Piece piece) {
                  if (parameter.name == kPositionsName) {
                    piece.global_shape = checkpoint->shape_of(parameter.name);
                    if (piece.global_shape.rows() < parameter.shape.rows())
                      throw IoError(fmt::format("{}: {} is {}; {} wanted: model.seq_len may be less, not more", path,
                                                parameter.name, piece.global_shape.text(), parameter.shape.text()));
                  }
                  checkpoint->read(piece);  // a whole-tensor piece of fewer elements: the first ones
                });
  };
  for (const nn::Parameter& parameter : model.parameters().all()) {
    if (!checkpoint->has(parameter.name) && is_of_head(model, parameter)) {
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

#include "esp/train/loaded.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/train/engine.h"
#include "esp/train/snapshot.h"

namespace esp::train {

std::string checkpoint_at(const std::string& path) {
  namespace fs = std::filesystem;
  if (fs::exists(path + "/manifest.json")) return path;
  for (const std::string& dir : {path + "/checkpoints", path})
    if (auto found = ckpt::newest_complete(dir)) return *found;
  throw IoError(fmt::format("{}: no complete checkpoint there; give a run folder, or checkpoints/step-N of one", path));
}

std::unique_ptr<LoadedModel> load_model(const std::string& path, int threads) {
  auto loaded = std::make_unique<LoadedModel>(threads > 0 ? threads : available_cores());
  loaded->path = checkpoint_at(path);
  const auto checkpoint = ckpt::open_checkpoint(loaded->path);
  loaded->step = checkpoint->step();
  const Json& state = checkpoint->state();
  if (!state.contains("run") || !state["run"].is_string())
    throw IoError(fmt::format("{}: the manifest holds no run file", loaded->path));
  loaded->config = parse_run_config(state["run"].get<std::string>(), loaded->path + "/manifest.json", {});
  loaded->tokenizer = data::load_tokenizer(loaded->config.data.tokenizer == "byte" ? "byte" : loaded->path);
  const model::ModelConfig shape = model_config(loaded->config.model);
  shape.check();
  loaded->model = model::make_model(shape);
  loaded->model->parameters().materialize(loaded->context, storage_type(loaded->config.train.precision), false);
  load_parameters(loaded->model->parameters(), *checkpoint);
  return loaded;
}

}  // namespace esp::train

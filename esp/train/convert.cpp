#include "esp/train/convert.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/model/hf_config.h"
#include "esp/model/hf_fields.h"
#include "esp/obs/file.h"
#include "esp/train/convert_tokenizer.h"
#include "esp/train/convert_weights.h"
#include "esp/train/hf_settings.h"
#include "esp/train/snapshot.h"
#include "esp/train/trained_model.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

struct Layout {
  std::string_view name;
};
constexpr Layout kLayouts[] = {{"hf"}, {"espalier"}};

struct Precision {
  std::string_view name;
  DType dtype;
};
constexpr Precision kDTypes[] = {{"fp32", DType::f32}, {"bf16", DType::bf16}};  // the names that --dtype accepts
constexpr Precision kTorchNames[] = {
    {"float64", DType::f64}, {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};

void check_destination(const std::string& path) {
  if (path.empty()) throw UsageError("destination: got an empty path; expected a folder that is new or empty");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status))
    throw UsageError(fmt::format("destination {}: got a file; expected a folder that is new or empty", path));
  if (!fs::is_empty(path, error))
    throw UsageError(
        fmt::format("destination {}: got a folder that is not empty; expected a new or empty folder", path));
}

// A temporary folder beside the destination. The destructor removes it unless it was renamed to the destination.
class PartialFolder {
 public:
  explicit PartialFolder(const std::string& destination) : destination_(fs::absolute(destination).lexically_normal()) {
    // a trailing "/", as in "out/", gives an empty file name
    if (destination_.filename().empty()) destination_ = destination_.parent_path();
    path_ = fmt::format("{}.partial-{}", destination_.string(), getpid());
    std::error_code error;
    fs::remove_all(path_, error);
    fs::create_directories(path_, error);
    if (error) throw IoError(fmt::format("{}: {}", path_, error.message()));
  }
  ~PartialFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::string& path() const { return path_; }
  void move_to_destination(const std::string& folder) const {
    for (const auto& entry : fs::directory_iterator(folder)) obs::File(entry.path().string(), O_RDONLY).sync();
    obs::File(folder, O_RDONLY | O_DIRECTORY).sync();
    std::error_code error;
    fs::rename(folder, destination_, error);
    if (error) throw IoError(fmt::format("{}: {}", destination_.string(), error.message()));
    obs::File(destination_.parent_path().string(), O_RDONLY | O_DIRECTORY).sync();
  }

 private:
  fs::path destination_;
  std::string path_;
};

// Number of embedding rows in use, one per token id of the tokenizer. The embedding may have more rows, because of
// vocabulary padding.
int64_t embedding_rows_in_use(const TrainedModel& loaded) {
  const int64_t rows = loaded.config.model.vocab;
  return loaded.tokenizer ? std::min<int64_t>(rows, loaded.tokenizer->vocab_size()) : rows;
}

constexpr struct {
  const char* key;
  std::optional<int32_t> data::SpecialTokens::*id;
} kTokenIds[] = {{"bos_token_id", &data::SpecialTokens::bos},
                 {"eos_token_id", &data::SpecialTokens::eos},
                 {"pad_token_id", &data::SpecialTokens::pad}};

Json config_json(const TrainedModel& loaded, int64_t vocab, DType dtype) {
  model::ModelConfig shape = loaded.model->config();
  shape.vocab = vocab;
  Json json = model::hf_config(shape);
  for (const auto& row : kTokenIds)
    if (loaded.tokenizer)
      if (const auto id = loaded.tokenizer->special().*row.id; id && *id < vocab) json[row.key] = *id;
  model::keep_hf_fields(json, hf_source_config(loaded.path), shape);
  for (const Precision& row : kTorchNames)
    if (row.dtype == dtype) json["torch_dtype"] = row.name;
  return json;
}

void write_hf(TrainedModel& loaded, const PartialFolder& place, const ConvertOptions& options, Conversion& done) {
  const int64_t rows = loaded.config.model.vocab, vocab = embedding_rows_in_use(loaded);
  if (vocab < rows)
    done.notes.push_back(fmt::format(
        "removed the vocabulary padding: embedding cut from {} rows to the {} ids of the tokenizer", rows, vocab));
  const std::string& folder = place.path();
  // config.json is written first, because this fails for models that Hugging Face does not support.
  obs::write_whole_file(folder + "/" + ckpt::kHfConfigName, config_json(loaded, vocab, done.dtype).dump(2) + "\n");
  const auto tensors = hf_tensors(*loaded.model, done.dtype, vocab, loaded.context.stream);
  for (const auto& tensor : tensors)
    done.num_parameters += static_cast<int64_t>(tensor.bytes() / size_of(tensor.dtype));
  ckpt::write_hf_tensors(folder, tensors, options.shard_bytes);
  write_hf_settings(read_hf_settings(loaded.path), folder, true);
  if (loaded.tokenizer) {
    copy_tokenizer_files(loaded.path, folder);
    complete_hf_tokenizer(*loaded.tokenizer, folder, vocab, loaded.config.model.seq_len);
  }
  place.move_to_destination(folder);
}

void write_checkpoint(TrainedModel& loaded, const PartialFolder& place, const ConvertOptions& options,
                      Conversion& done) {
  ckpt::Snapshot snapshot;
  snapshot.step = loaded.step;
  for (const nn::Parameter& parameter : loaded.model->parameters().all()) {
    snapshot.model.push_back(whole_slice(parameter));
    done.num_parameters += parameter.count();
  }
  // The same fields as in a checkpoint of a training run, but no optimizer state.
  snapshot.state = {{"step", loaded.step},
                    {"next_sample", loaded.step * loaded.config.train.global_batch},
                    {"seed", loaded.config.run.seed},
                    {"tokenizer", loaded.config.data.tokenizer},
                    {"run", to_toml(loaded.config)}};
  ckpt::SaveOptions saving;
  saving.shard_bytes = static_cast<int64_t>(options.shard_bytes);
  saving.add_files = [&](const std::string& folder) {
    if (loaded.tokenizer) copy_tokenizer_files(loaded.path, folder);
    write_hf_settings(read_hf_settings(loaded.path), folder, false);
  };
  place.move_to_destination(ckpt::save(place.path(), snapshot, saving));
}

}  // namespace

Conversion convert(const std::string& source, const std::string& destination, const ConvertOptions& options) {
  if (!options.layout.empty()) find_row("layout", kLayouts, options.layout);
  LoadOptions loading;
  loading.threads = options.threads;
  if (!options.dtype.empty()) loading.dtype = find_row("dtype", kDTypes, options.dtype).dtype;
  check_destination(destination);

  Conversion done;
  done.from_layout = ckpt::is_hf_folder(source) ? "hf" : "espalier";
  done.to_layout = !options.layout.empty() ? options.layout : done.from_layout == "hf" ? "espalier" : "hf";
  const auto loaded = load_model(source, loading);
  done.arch = loaded->config.model.arch;
  done.dtype = storage_type(loaded->config.train.precision);
  if (!loaded->unused_tensors.empty())
    done.notes.push_back(fmt::format("tensors left out, because a {} model does not use them: {}", done.arch,
                                     fmt::join(loaded->unused_tensors, ", ")));
  for (const std::string& one : loaded->skipped_checkpoints) done.notes.push_back("skipped checkpoint " + one);
  if (!loaded->tokenizer) done.notes.push_back(fmt::format("{} has no tokenizer", source));
  const PartialFolder place(destination);
  done.to_layout == "hf" ? write_hf(*loaded, place, options, done) : write_checkpoint(*loaded, place, options, done);
  return done;
}

}  // namespace esp::train

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
#include "esp/train/loaded.h"
#include "esp/train/snapshot.h"

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
constexpr Precision kDTypes[] = {{"fp32", DType::f32}, {"bf16", DType::bf16}};  // that can be asked for
constexpr Precision kTorchNames[] = {
    {"float64", DType::f64}, {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};

void check_destination(const std::string& path) {
  if (path.empty()) throw UsageError("destination: got an empty path; expected a folder that is new or empty");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status))
    throw UsageError(fmt::format("{} is a file; name a folder that is new or empty", path));
  if (!fs::is_empty(path, error))
    throw UsageError(fmt::format("{} is not empty, and nothing in it is overwritten; name a folder that is new", path));
}

// A folder beside the destination that is gone unless it was moved there.
class Workplace {
 public:
  explicit Workplace(const std::string& destination) : destination_(fs::absolute(destination).lexically_normal()) {
    if (destination_.filename().empty()) destination_ = destination_.parent_path();  // "out/"
    path_ = fmt::format("{}.partial-{}", destination_.string(), getpid());
    std::error_code error;
    fs::remove_all(path_, error);
    fs::create_directories(path_, error);
    if (error) throw IoError(fmt::format("{}: {}", path_, error.message()));
  }
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

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

// Rows of the token tables that mean something: a vocabulary is often padded to a round number.
int64_t ids_in_use(const LoadedModel& loaded) {
  const int64_t rows = loaded.config.model.vocab;
  return loaded.tokenizer ? std::min<int64_t>(rows, loaded.tokenizer->vocab_size()) : rows;
}

constexpr struct {
  const char* key;
  std::optional<int32_t> data::SpecialTokens::*id;
} kTokenIds[] = {{"bos_token_id", &data::SpecialTokens::bos},
                 {"eos_token_id", &data::SpecialTokens::eos},
                 {"pad_token_id", &data::SpecialTokens::pad}};

Json config_json(const LoadedModel& loaded, int64_t vocab, DType dtype) {
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

void write_hf(LoadedModel& loaded, const Workplace& place, const ConvertOptions& options, Conversion& done) {
  const int64_t rows = loaded.config.model.vocab, vocab = ids_in_use(loaded);
  if (vocab < rows)
    done.notes.push_back(fmt::format("vocabulary cut from {} rows to the {} ids of the tokenizer", rows, vocab));
  const std::string& folder = place.path();
  // First: it says what has no Hugging Face form.
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

void write_checkpoint(LoadedModel& loaded, const Workplace& place, const ConvertOptions& options, Conversion& done) {
  ckpt::Snapshot snapshot;
  snapshot.step = loaded.step;
  for (const nn::Parameter& parameter : loaded.model->parameters().all()) {
    snapshot.model.push_back(piece_of(parameter));
    done.num_parameters += parameter.count();
  }
  // As a trainer writes it, without what an optimizer would have added.
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
  if (!loaded->unknown.empty())
    done.notes.push_back(fmt::format("left out, unknown to a {}: {}", done.arch, fmt::join(loaded->unknown, ", ")));
  for (const std::string& one : loaded->passed_over) done.notes.push_back("passed over checkpoint " + one);
  if (!loaded->tokenizer) done.notes.push_back(fmt::format("{} has no tokenizer", source));
  const Workplace place(destination);
  done.to_layout == "hf" ? write_hf(*loaded, place, options, done) : write_checkpoint(*loaded, place, options, done);
  return done;
}

}  // namespace esp::train

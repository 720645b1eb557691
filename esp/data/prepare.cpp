#include "esp/data/prepare.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/file_digest.h"
#include "esp/data/file_lock.h"
#include "esp/data/partial_file.h"
#include "esp/data/token_metadata.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr size_t kMaxPieces = 65536;  // chunks per batch: limits the overhead of many tiny documents
constexpr size_t kMaxStateBytes = size_t{16} << 20;

struct TextBatch {
  std::vector<TextChunk> pieces;
  std::vector<std::vector<int32_t>> tokens;
  uint64_t bytes = 0;
};

// Position in the inputs, and the result of all text before it.
struct Progress {
  TextCursor at;
  PrepareResult result;
};

// Encodes a batch on worker threads while the caller reads the next batch. wait() rethrows an exception of a worker.
class BatchEncoder {
 public:
  BatchEncoder(TextBatch& batch, const Tokenizer& tokenizer, const PrepareOptions& options)
      : batch_(batch), tokenizer_(tokenizer), special_(options.allow_special) {
    batch.tokens.resize(batch.pieces.size());
    size_t wanted = std::min<size_t>(static_cast<size_t>(std::max(options.threads, 1)), batch.pieces.size());
    try {
      for (size_t i = 0; i < wanted; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // continues with fewer threads if at least one has started
    }
  }
  ~BatchEncoder() { join(); }
  void wait() {
    join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() {
    pthread_setname_np(pthread_self(), "esp-tokenize");
    try {
      for (size_t i; (i = next_++) < batch_.pieces.size();) {
        batch_.tokens[i].clear();
        if (special_)
          tokenizer_.encode(batch_.pieces[i].text, batch_.tokens[i]);
        else
          tokenizer_.encode_ordinary(batch_.pieces[i].text, batch_.tokens[i]);
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  TextBatch& batch_;
  const Tokenizer& tokenizer_;
  bool special_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::exception_ptr error_;  // guarded by mutex_ until the threads are joined
  std::vector<std::thread> threads_;
};

bool read_batch(TextReader& reader, uint64_t batch_bytes, TextBatch& batch) {
  size_t used = 0;
  batch.bytes = 0;
  for (; batch.bytes < batch_bytes && used < kMaxPieces; ++used) {
    if (used == batch.pieces.size()) batch.pieces.emplace_back();
    if (!reader.next(batch.pieces[used])) break;
    batch.bytes += batch.pieces[used].text.size();
  }
  batch.pieces.resize(used);
  return used > 0;
}

void write_batch(const TextBatch& batch, std::optional<int32_t> separator, SeparatorPlacement place,
                 TokenWriter& writer, Progress& progress) {
  PrepareResult& done = progress.result;
  auto put = [&](std::span<const int32_t> tokens) {
    writer.append(tokens);
    done.tokens += tokens.size();
    for (int32_t id : tokens) done.max_id = std::max<int64_t>(done.max_id, id);
  };
  for (size_t i = 0; i < batch.pieces.size(); ++i) {
    const TextChunk& piece = batch.pieces[i];
    bool begins = i > 0 ? batch.pieces[i - 1].ends_document : !progress.at.inside;
    if (begins && place == SeparatorPlacement::between && separator && done.documents > 0) put({&*separator, 1});
    put(batch.tokens[i]);
    if (piece.ends_document) {
      if (place == SeparatorPlacement::after && separator) put({&*separator, 1});
      writer.end_document();
      ++done.documents;
    }
  }
  done.text_bytes += batch.bytes;
  progress.at = batch.pieces.back().after;
}

// Pipelines reading and encoding: the next batch is read while the current batch is encoded.
void run(const PrepareOptions& options, const Tokenizer& tokenizer, TokenWriter& writer, Progress& progress,
         const std::function<void()>& record) {
  TextReader reader(options.inputs, options.reader, progress.at);
  TextBatch batches[2];
  uint64_t unrecorded = 0;
  bool more = read_batch(reader, options.batch_bytes, batches[0]);
  for (size_t turn = 0; more; ++turn) {
    TextBatch& batch = batches[turn % 2];
    BatchEncoder encoding(batch, tokenizer, options);
    more = read_batch(reader, options.batch_bytes, batches[(turn + 1) % 2]);
    encoding.wait();
    write_batch(batch, tokenizer.special().eos, options.separator, writer, progress);
    unrecorded += batch.bytes;
    if (options.on_progress) options.on_progress(progress.result);
    if (record && unrecorded >= options.checkpoint_bytes) {
      record();
      unrecorded = 0;
    }
  }
}

Json to_json(const PrepareResult& prepared) {
  return {{"tokens", prepared.tokens},
          {"documents", prepared.documents},
          {"text_bytes", prepared.text_bytes},
          {"max_id", prepared.max_id}};
}

PrepareResult prepared_from(const Json& json) {
  PrepareResult prepared;
  prepared.tokens = json.at("tokens").get<uint64_t>();
  prepared.documents = json.at("documents").get<uint64_t>();
  prepared.text_bytes = json.at("text_bytes").get<uint64_t>();
  prepared.max_id = json.at("max_id").get<int64_t>();
  return prepared;
}

// Reads the JSON state that an earlier process stored under this key. Returns null if there is none.
Json read_progress(const std::string& path, const std::string& key) {
  if (!std::filesystem::exists(path)) return nullptr;
  Json state = parse_json(obs::read_whole_file(path, kMaxStateBytes), path);
  if (!state.is_object() || !state.contains("key") || state["key"] != key) return nullptr;
  return state;
}

Json to_json(const Progress& progress) {
  Json json = to_json(progress.result);
  const TextCursor& at = progress.at;
  json["at"] = {{"input", at.input}, {"offset", at.offset}, {"line", at.line}, {"inside", at.inside}};
  return json;
}

Progress progress_from(const Json& state) {
  const Json& at = state.at("at");
  return {{at.at("input").get<uint64_t>(), at.at("offset").get<uint64_t>(), at.at("line").get<uint64_t>(),
           at.at("inside").get<bool>()},
          prepared_from(state)};
}

// Size and sampled hash of each file, as the completed state stores them.
std::vector<std::string> digests_of(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const FileDigest& digest : digest_files(paths))
    texts.push_back(fmt::format("{} {:016x}", digest.bytes, digest.hash));
  return texts;
}

// Returns the result of an earlier run with this key if its output files still have the content it wrote. If a file is
// missing or differs, all files are written again.
std::optional<PrepareResult> find_completed(const std::string& path, const std::string& key) {
  Json done = read_progress(path, key);
  if (done.is_null()) return std::nullopt;
  PrepareResult prepared = prepared_from(done);
  prepared.outputs = done.at("outputs").get<std::vector<std::string>>();
  prepared.already_complete = true;
  auto there = [](const std::string& output) { return std::filesystem::exists(output); };
  if (!std::all_of(prepared.outputs.begin(), prepared.outputs.end(), there)) return std::nullopt;
  if (done.value("digests", std::vector<std::string>()) != digests_of(prepared.outputs)) return std::nullopt;
  return prepared;
}

// Removes shards of an earlier run that this run did not overwrite. A reader would take them as part of the output.
void remove_stale_shards(const std::string& done_path, const std::vector<std::string>& outputs) {
  if (!std::filesystem::exists(done_path)) return;
  Json done = parse_json(obs::read_whole_file(done_path, kMaxStateBytes), done_path);
  for (const std::string& old : done.at("outputs").get<std::vector<std::string>>())
    if (std::find(outputs.begin(), outputs.end(), old) == outputs.end()) std::filesystem::remove(old);
}

// Removes partial outputs that cannot be resumed.
void remove_partial_files(TokenWriter& writer) {
  for (const std::string& output : writer.outputs()) unlink(PartialFile::partial(output).c_str());
  writer.clean_up();
}

std::string inputs_text(const std::vector<Input>& inputs) {
  return inputs.size() == 1 ? inputs[0].path : fmt::format("the {} files given", inputs.size());
}

}  // namespace

PrepareResult tokenize(const PrepareOptions& options, const Tokenizer& tokenizer, TokenWriter& writer) {
  Progress progress;
  run(options, tokenizer, writer, progress, nullptr);
  writer.finish();
  writer.clean_up();
  progress.result.outputs = writer.outputs();
  return progress.result;
}

PrepareResult prepare(const PrepareOptions& options, const WriterOptions& writer_options, const Tokenizer& tokenizer,
                      std::string key) {
  if (key.empty()) key = prepare_key(options, writer_options, tokenizer);
  const std::string state_path = writer_options.output + ".progress.json", done_path = writer_options.output + ".json";
  try {
    if (std::optional<PrepareResult> found = find_completed(done_path, key)) return *found;
    FileLock lock(writer_options.output + ".lock", Deadline::after(options.lock_timeout));
    if (std::optional<PrepareResult> found = find_completed(done_path, key)) return *found;

    Progress progress;
    Json state = read_progress(state_path, key);
    if (!state.is_null()) progress = progress_from(state);
    std::unique_ptr<TokenWriter> writer = make_writer(writer_options, state.is_null() ? nullptr : &state.at("writer"));
    try {
      run(options, tokenizer, *writer, progress, [&] {
        Json now = to_json(progress);
        now["key"] = key;
        now["writer"] = writer->checkpoint();
        obs::write_whole_file(state_path, now.dump());
      });
      if (progress.result.text_bytes == 0 && !options.may_be_empty)
        throw IoError(fmt::format("no text in {}: there is nothing to write", inputs_text(options.inputs)));
    } catch (...) {
      if (read_progress(state_path, key).is_null()) remove_partial_files(*writer);
      throw;
    }
    writer->finish();
    progress.result.outputs = writer->outputs();
    remove_stale_shards(done_path, progress.result.outputs);
    Json done = to_json(progress.result);
    done["key"] = key;
    done["format"] = writer_options.format;
    done["type"] = std::string(name_of(writer_options.type));
    describe_tokenizer(tokenizer, done);
    done["outputs"] = progress.result.outputs;
    done["digests"] = digests_of(progress.result.outputs);
    obs::write_whole_file(done_path, done.dump(1) + "\n");
    std::filesystem::remove(state_path);
    writer->clean_up();
    return progress.result;
  } catch (const Json::exception& error) {
    throw IoError(
        fmt::format("{} or {} is damaged ({}). Remove both files to start over", state_path, done_path, error.what()));
  }
}

}  // namespace esp::data

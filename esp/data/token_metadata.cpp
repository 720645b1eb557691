#include "esp/data/token_metadata.h"

#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr size_t kMaxRecordBytes = size_t{16} << 20;

// Text that different tokenizers encode differently: prose, code, numbers, several scripts.
constexpr std::string_view kProbe =
    "The quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times; and nobody, "
    "not even the international committee, understood everything that happened afterwards.\n\n"
    "\tfor (int i = 0; i < 1024; ++i) { total += values[i] * 3.14159; }  // they're added up\n"
    "def training_step(self, batch):\n    return self.model(batch[\"input_ids\"])\n"
    "# Title\n- [link](https://www.example.org/index.html?page=27)  2024-06-30  $1,234,567.89  100%\n"
    "L'été, naïve façade, größer, mañana, Ærøskøbing; Быстрая лиса; η γρήγορη αλεπού; "
    "השועל; الثعلب السريع; 敏捷的棕色狐狸，すばやい茶色の狐、재빠른 갈색 여우 "
    "🦊 ∑∫≤ “quoted” — dash…\r\n"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ abcdefghijklmnopqrstuvwxyz 0123456789 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ "
    "pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism rhythm zyzzyva qwerty\n";

std::string text_at(const Json& json, const char* key) {
  auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

TokenMetadata from_json(const Json& json, const std::string& path) {
  TokenMetadata record;
  record.path = path;
  if (std::string type = text_at(json, "type"); !type.empty()) record.type = parse_token_type(type);
  if (auto found = json.find("tokens"); found != json.end() && found->is_number_unsigned())
    record.tokens = found->get<uint64_t>();
  if (auto found = json.find("vocab"); found != json.end() && found->is_number_integer())
    record.vocab = found->get<int64_t>();
  record.kind = text_at(json, "tokenizer");
  record.fingerprint = text_at(json, "tokenizer_fingerprint");
  return record;
}

// A NAME.json beside a file of another format may be anything, even a corpus. Only files written by prepare() are
// metadata.
std::optional<TokenMetadata> read_metadata(const std::string& path) {
  std::error_code failed;
  const uintmax_t bytes = std::filesystem::file_size(path, failed);
  if (failed || bytes > kMaxRecordBytes) return std::nullopt;
  Json json;
  try {
    json = parse_json(obs::read_whole_file(path, kMaxRecordBytes), path);
  } catch (const IoError&) {
    return std::nullopt;
  }
  if (!json.is_object() || !json.contains("key") || !json.contains("outputs")) return std::nullopt;
  return from_json(json, path);
}

// Returns NAME for NAME_000017.bin.
std::string without_shard(std::string path) {
  if (!path.ends_with(".bin")) return path;
  path.resize(path.size() - 4);
  const size_t dash = path.rfind('_');
  if (dash == path.npos || dash + 1 == path.size()) return path;
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (std::all_of(path.begin() + static_cast<long>(dash) + 1, path.end(), is_digit)) path.resize(dash);
  return path;
}

std::optional<TokenMetadata> record_of(const Input& input) {
  if (input.kind == InputKind::bin) return find_raw_metadata(input.path);
  const std::string name = input.kind == InputKind::llmc ? without_shard(input.path) : input.path;
  for (std::string_view ending : {".json", ".bin.json", ".idx.json"})
    if (auto record = read_metadata(name + std::string(ending))) return record;
  return std::nullopt;
}

}  // namespace

std::optional<TokenMetadata> find_raw_metadata(const std::string& path) {
  const std::string beside = path + ".json";
  if (!std::filesystem::exists(beside)) return std::nullopt;
  const Json json = parse_json(obs::read_whole_file(beside, kMaxRecordBytes), beside);
  if (!json.is_object()) return std::nullopt;
  return from_json(json, beside);
}

std::string tokenizer_fingerprint(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  tokenizer.encode_ordinary(kProbe, ids);
  XXH128_hash_t hash = XXH3_128bits(ids.data(), ids.size() * sizeof(int32_t));
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

void describe_tokenizer(const Tokenizer& tokenizer, Json& record) {
  record["tokenizer"] = std::string(tokenizer.kind());
  record["vocab"] = tokenizer.vocab_size();
  record["tokenizer_fingerprint"] = tokenizer_fingerprint(tokenizer);
}

// Compares fingerprints if the metadata has one, otherwise kind and vocabulary size. Added tokens enlarge a vocabulary
// but do not change the ids of a text, and so do not change the fingerprint.
void check_tokenizer(const Input& input, const Tokenizer& tokenizer) {
  const std::optional<TokenMetadata> record = record_of(input);
  if (!record || record->kind.empty()) return;
  const bool same = record->fingerprint.empty() ? record->kind == tokenizer.kind() &&
                                                      (!record->vocab || *record->vocab == tokenizer.vocab_size())
                                                : record->fingerprint == tokenizer_fingerprint(tokenizer);
  if (same) return;
  const std::string of = record->vocab ? fmt::format(" of {} ids", *record->vocab) : std::string();
  throw UsageError(
      fmt::format("{} was made with another tokenizer, {}{} as {} says; this run uses {} of {} ids. Use the "
                  "tokenizer of the file, or run data prepare with this one",
                  input.path, record->kind, of, record->path, tokenizer.kind(), tokenizer.vocab_size()));
}

}  // namespace esp::data

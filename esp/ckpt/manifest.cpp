#include "esp/ckpt/manifest.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/safetensors.h"
#include "esp/ckpt/steps.h"

namespace esp::ckpt {
namespace {

constexpr int kVersion = 2, kOldest = 1;
// The file begins so; the checksum is of every byte behind the second.
constexpr std::string_view kBeforeChecksum = "{\n \"checksum\": \"", kBehindChecksum = "\",\n";
constexpr size_t kChecksumLetters = 32;

Json box_of(const PieceRecord& piece) {
  Json json = {{"file", piece.file}, {"key", piece.key}, {"first", piece.first}, {"count", piece.count}};
  if (!piece.begin.empty()) {
    json["begin"] = piece.begin;
    json["extent"] = piece.extent;
  }
  if (!piece.checksum.empty()) json["xxh3_64"] = piece.checksum;
  return json;
}

// A file name, never a path: a manifest must not reach outside its folder.
void check_file_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name[0] == '.')
    throw IoError(fmt::format("file name \"{}\"", name));
}

std::vector<int64_t> whole_numbers(const Json& values) {
  if (!values.is_array()) throw IoError(fmt::format("got {}; expected an array of numbers", values.dump()));
  std::vector<int64_t> numbers;
  for (const Json& value : values) numbers.push_back(whole_number(value));
  return numbers;
}

PieceRecord piece_from(const Json& json) {
  PieceRecord piece;
  piece.file = json.at("file").get<std::string>();
  check_file_name(piece.file);
  piece.key = json.at("key").get<std::string>();
  piece.first = whole_number(json.at("first"));
  piece.count = whole_number(json.at("count"));
  if (json.contains("begin")) {
    piece.begin = whole_numbers(json.at("begin"));
    piece.extent = whole_numbers(json.at("extent"));
  }
  if (json.contains("xxh3_64")) piece.checksum = json.at("xxh3_64").get<std::string>();
  return piece;
}

// Boxes lie inside the tensor and flat ranges inside their box; element counts do not overflow.
void check_piece(const TensorRecord& tensor, const PieceRecord& piece) {
  const std::vector<int64_t>& extent = piece.begin.empty() ? tensor.shape : piece.extent;
  bool fits =
      piece.begin.empty() || (piece.begin.size() == tensor.shape.size() && extent.size() == tensor.shape.size());
  int64_t count = 1;
  for (size_t d = 0; fits && d < extent.size(); ++d) {
    const int64_t begin = piece.begin.empty() ? 0 : piece.begin[d];
    fits = begin >= 0 && extent[d] >= 0 && begin <= tensor.shape[d] - extent[d] &&
           !__builtin_mul_overflow(count, extent[d], &count);
  }
  if (!fits || piece.first < 0 || piece.count < 0 || piece.first > count || piece.count > count - piece.first)
    throw IoError(fmt::format("piece {} of {} does not lie inside its tensor", piece.key, piece.file));
}

// Two pieces that tell of one element could tell two things. Flat runs are compared; boxes, which may interleave, are
// counted.
void check_told_once(const TensorRecord& tensor, const std::string& name) {
  int64_t count = 1, held = 0;
  bool once = true, flat = true;
  for (int64_t dim : tensor.shape) once = once && !__builtin_mul_overflow(count, dim, &count);
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const PieceRecord& piece : tensor.pieces) {
    once = once && !__builtin_add_overflow(held, piece.count, &held);
    flat = flat && piece.begin.empty();
    if (piece.count > 0) runs.emplace_back(piece.first, piece.first + piece.count);
  }
  once = once && held <= count;
  std::sort(runs.begin(), runs.end());
  for (size_t i = 1; once && flat && i < runs.size(); ++i) once = runs[i - 1].second <= runs[i].first;
  if (!once) throw IoError(fmt::format("elements of {} are told of more than once", name));
}

void read_files(const Json& json, std::map<std::string, FileRecord>& files) {
  for (const auto& [file, record] : json.items()) {
    check_file_name(file);
    if (file == kManifestName) throw IoError("it lists itself");
    const int64_t bytes = whole_number(record.at("bytes"));
    if (bytes < 0) throw IoError(fmt::format("{} of {} bytes", file, bytes));
    files[file] = {static_cast<uint64_t>(bytes), record.at("xxh3_128").get<std::string>()};
  }
}

Json json_of(const std::map<std::string, FileRecord>& files) {
  Json json = Json::object();
  auto& rows = json.get_ref<Json::object_t&>();  // filled without a search of all names for each
  for (const auto& [name, file] : files)
    rows.emplace_back(name, Json{{"bytes", file.bytes}, {"xxh3_128", file.checksum}});
  return json;
}

std::string checksum_of_text(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

// Whether there is a checksum; IoError when it is not that of the text.
bool checked(std::string_view text, std::string_view name) {
  const size_t begin = kBeforeChecksum.size(), end = begin + kChecksumLetters;
  if (!text.starts_with(kBeforeChecksum) || text.size() < end + kBehindChecksum.size()) return false;
  const std::string_view told = text.substr(begin, kChecksumLetters), rest = text.substr(end);
  if (!rest.starts_with(kBehindChecksum) || checksum_of_text(rest.substr(kBehindChecksum.size())) != told)
    throw IoError(fmt::format("{}: damaged: its checksum is not that of its text", name));
  return true;
}

TensorRecord tensor_from(const Json& json) {
  TensorRecord tensor;
  try {
    tensor.dtype = parse_dtype(json.at("dtype").get<std::string>());
  } catch (const UsageError& error) {
    throw IoError(error.what());
  }
  tensor.shape = whole_numbers(json.at("shape"));
  if (tensor.shape.size() > 6) throw IoError("a tensor of more than 6 dimensions");
  for (int64_t dim : tensor.shape)
    if (dim < 0) throw IoError("a negative dimension");
  for (const Json& piece : json.at("pieces")) {
    tensor.pieces.push_back(piece_from(piece));
    check_piece(tensor, tensor.pieces.back());
  }
  return tensor;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Json json = {{"format", "espalier"}, {"version", kVersion}, {"step", manifest.step}, {"state", manifest.state}};
  if (!manifest.attempt.empty()) json["attempt"] = manifest.attempt;
  json["files"] = json_of(manifest.files);
  if (!manifest.added.empty()) json["added"] = json_of(manifest.added);
  json["tensors"] = Json::object();
  auto& tensors = json["tensors"].get_ref<Json::object_t&>();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json pieces = Json::array();
    for (const PieceRecord& piece : tensor.pieces) pieces.push_back(box_of(piece));
    tensors.emplace_back(
        name, Json{{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}});
  }
  const std::string text = json.dump(1) + "\n", rest = text.substr(2);  // behind "{\n"
  return fmt::format("{}{}{}{}", kBeforeChecksum, checksum_of_text(rest), kBehindChecksum, rest);
}

int64_t whole_number(const Json& value) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= std::numeric_limits<int64_t>::max());
  if (!fits) throw IoError(fmt::format("got {}; expected a whole number", value.dump()));
  return value.get<int64_t>();
}

Manifest parse_manifest(std::string_view text, std::string_view name) {
  const bool has_checksum = checked(text, name);
  const Json json = parse_json(text, name);
  try {
    const Json& version = json.at("version");
    if (json.at("format") != "espalier" || !version.is_number_integer() || version < kOldest || version > kVersion)
      throw IoError(fmt::format("format {} version {} is not one this build reads (espalier {} to {})",
                                json.at("format").dump(), version.dump(), kOldest, kVersion));
    if (version >= 2 && !has_checksum) throw IoError("damaged: it does not begin with its checksum");
    Manifest manifest;
    const Json& step = json.at("step");
    if (!step.is_number_integer() || step < 0 || step > kMaxStep)
      throw IoError(fmt::format("step: got {}; expected an integer from 0 to {}", step.dump(), kMaxStep));
    manifest.step = step.get<int64_t>();
    manifest.state = json.at("state");
    if (!manifest.state.is_object()) throw IoError("state is no object");
    if (json.contains("attempt")) manifest.attempt = json.at("attempt").get<std::string>();
    read_files(json.at("files"), manifest.files);
    if (json.contains("added")) read_files(json.at("added"), manifest.added);
    for (const auto& [tensor, record] : json.at("tensors").items()) {
      manifest.tensors.emplace(tensor, tensor_from(record));
      for (const PieceRecord& piece : manifest.tensors.find(tensor)->second.pieces)
        if (!manifest.files.contains(piece.file))
          throw IoError(fmt::format("{} lies in {}, which is not listed", tensor, piece.file));
      check_told_once(manifest.tensors.find(tensor)->second, tensor);
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace esp::ckpt

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
// The file begins with the checksum field. The checksum is of all bytes after that field.
constexpr std::string_view kBeforeChecksum = "{\n \"checksum\": \"", kBehindChecksum = "\",\n";
constexpr size_t kChecksumLetters = 32;

Json box_of(const SliceRecord& slice) {
  Json json = {{"file", slice.file}, {"key", slice.key}, {"first", slice.first}, {"count", slice.count}};
  if (!slice.begin.empty()) {
    json["begin"] = slice.begin;
    json["extent"] = slice.extent;
  }
  if (!slice.checksum.empty()) json["xxh3_64"] = slice.checksum;
  return json;
}

// A plain file name, not a path: a manifest must not reference files outside its folder.
void check_file_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name[0] == '.')
    throw IoError(fmt::format("file name: got \"{}\"; expected a name without a path", name));
}

std::vector<int64_t> whole_numbers(const Json& values) {
  if (!values.is_array()) throw IoError(fmt::format("got {}; expected an array of numbers", values.dump()));
  std::vector<int64_t> numbers;
  for (const Json& value : values) numbers.push_back(whole_number(value));
  return numbers;
}

SliceRecord piece_from(const Json& json) {
  SliceRecord slice;
  slice.file = json.at("file").get<std::string>();
  check_file_name(slice.file);
  slice.key = json.at("key").get<std::string>();
  slice.first = whole_number(json.at("first"));
  slice.count = whole_number(json.at("count"));
  if (json.contains("begin")) {
    slice.begin = whole_numbers(json.at("begin"));
    slice.extent = whole_numbers(json.at("extent"));
  }
  if (json.contains("xxh3_64")) slice.checksum = json.at("xxh3_64").get<std::string>();
  return slice;
}

// Checks that the slice's box is inside the tensor and its contiguous range inside the box, without overflow of element
// counts.
void check_slice(const TensorRecord& tensor, const SliceRecord& slice) {
  const std::vector<int64_t>& extent = slice.begin.empty() ? tensor.shape : slice.extent;
  bool fits =
      slice.begin.empty() || (slice.begin.size() == tensor.shape.size() && extent.size() == tensor.shape.size());
  int64_t count = 1;
  for (size_t d = 0; fits && d < extent.size(); ++d) {
    const int64_t begin = slice.begin.empty() ? 0 : slice.begin[d];
    fits = begin >= 0 && extent[d] >= 0 && begin <= tensor.shape[d] - extent[d] &&
           !__builtin_mul_overflow(count, extent[d], &count);
  }
  if (!fits || slice.first < 0 || slice.count < 0 || slice.first > count || slice.count > count - slice.first)
    throw IoError(fmt::format("slice {} of file {}: got a range outside its tensor; expected a range inside it",
                              slice.key, slice.file));
}

// Rejects slices that overlap, because an element could then have two values. Contiguous ranges are compared with each
// other. Boxes may interleave, so for them only the total number of elements is checked.
void check_no_overlap(const TensorRecord& tensor, const std::string& name) {
  int64_t count = 1, held = 0;
  bool once = true, flat = true;
  for (int64_t dim : tensor.shape) once = once && !__builtin_mul_overflow(count, dim, &count);
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (const SliceRecord& slice : tensor.slices) {
    once = once && !__builtin_add_overflow(held, slice.count, &held);
    flat = flat && slice.begin.empty();
    if (slice.count > 0) runs.emplace_back(slice.first, slice.first + slice.count);
  }
  once = once && held <= count;
  std::sort(runs.begin(), runs.end());
  for (size_t i = 1; once && flat && i < runs.size(); ++i) once = runs[i - 1].second <= runs[i].first;
  if (!once)
    throw IoError(
        fmt::format("tensor {}: got elements that are stored more than once; expected each element once", name));
}

void read_files(const Json& json, std::map<std::string, FileRecord>& files) {
  for (const auto& [file, record] : json.items()) {
    check_file_name(file);
    if (file == kManifestName) throw IoError("the manifest lists itself as a file");
    const int64_t bytes = whole_number(record.at("bytes"));
    if (bytes < 0) throw IoError(fmt::format("file {}: got {} bytes; expected a size >= 0", file, bytes));
    files[file] = {static_cast<uint64_t>(bytes), record.at("xxh3_128").get<std::string>()};
  }
}

Json json_of(const std::map<std::string, FileRecord>& files) {
  Json json = Json::object();
  // Rows are inserted directly, because json["name"] searches all names linearly.
  auto& rows = json.get_ref<Json::object_t&>();
  for (const auto& [name, file] : files)
    rows.emplace_back(name, Json{{"bytes", file.bytes}, {"xxh3_128", file.checksum}});
  return json;
}

std::string checksum_of_text(std::string_view text) {
  return file_checksum(std::as_bytes(std::span(text.data(), text.size())));
}

// True if the text has a checksum and it matches; false if the text has none. Throws IoError if the checksum does not
// match.
bool checked(std::string_view text, std::string_view name) {
  const size_t begin = kBeforeChecksum.size(), end = begin + kChecksumLetters;
  if (!text.starts_with(kBeforeChecksum) || text.size() < end + kBehindChecksum.size()) return false;
  const std::string_view stored = text.substr(begin, kChecksumLetters), rest = text.substr(end);
  if (!rest.starts_with(kBehindChecksum) || checksum_of_text(rest.substr(kBehindChecksum.size())) != stored)
    throw IoError(fmt::format("{}: damaged: the checksum does not match the text", name));
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
  if (tensor.shape.size() > 6) throw IoError("shape: got more than 6 dimensions; expected at most 6");
  for (int64_t dim : tensor.shape)
    if (dim < 0) throw IoError("shape: got a negative dimension; expected dimensions >= 0");
  for (const Json& slice : json.at("pieces")) {
    tensor.slices.push_back(piece_from(slice));
    check_slice(tensor, tensor.slices.back());
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
    Json slices = Json::array();
    for (const SliceRecord& slice : tensor.slices) slices.push_back(box_of(slice));
    tensors.emplace_back(
        name, Json{{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", std::move(slices)}});
  }
  const std::string text = json.dump(1) + "\n", rest = text.substr(2);  // the checksummed text begins after "{\n"
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
      throw IoError(fmt::format("format: got {} version {}; expected \"espalier\" version {} to {}",
                                json.at("format").dump(), version.dump(), kOldest, kVersion));
    if (version >= 2 && !has_checksum) throw IoError("damaged: the file does not begin with a checksum");
    Manifest manifest;
    const Json& step = json.at("step");
    if (!step.is_number_integer() || step < 0 || step > kMaxStep)
      throw IoError(fmt::format("step: got {}; expected an integer from 0 to {}", step.dump(), kMaxStep));
    manifest.step = step.get<int64_t>();
    manifest.state = json.at("state");
    if (!manifest.state.is_object())
      throw IoError(fmt::format("state: got {}; expected an object", manifest.state.type_name()));
    if (json.contains("attempt")) manifest.attempt = json.at("attempt").get<std::string>();
    read_files(json.at("files"), manifest.files);
    if (json.contains("added")) read_files(json.at("added"), manifest.added);
    for (const auto& [tensor, record] : json.at("tensors").items()) {
      manifest.tensors.emplace(tensor, tensor_from(record));
      for (const SliceRecord& slice : manifest.tensors.find(tensor)->second.slices)
        if (!manifest.files.contains(slice.file))
          throw IoError(
              fmt::format("tensor {}: got file {}, which is not listed under \"files\"; expected a listed file", tensor,
                          slice.file));
      check_no_overlap(manifest.tensors.find(tensor)->second, tensor);
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace esp::ckpt

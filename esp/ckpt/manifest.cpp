#include "esp/ckpt/manifest.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::ckpt {
namespace {

constexpr int kVersion = 1;

Json box_of(const PieceRecord& piece) {
  Json json = {{"file", piece.file}, {"key", piece.key}, {"first", piece.first}, {"count", piece.count}};
  if (!piece.begin.empty()) {
    json["begin"] = piece.begin;
    json["extent"] = piece.extent;
  }
  return json;
}

// A file name, never a path: a manifest must not reach outside its folder.
void check_file_name(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos || name[0] == '.')
    throw IoError(fmt::format("file name \"{}\"", name));
}

PieceRecord piece_from(const Json& json) {
  PieceRecord piece;
  piece.file = json.at("file").get<std::string>();
  check_file_name(piece.file);
  piece.key = json.at("key").get<std::string>();
  piece.first = json.at("first").get<int64_t>();
  piece.count = json.at("count").get<int64_t>();
  if (json.contains("begin")) {
    piece.begin = json.at("begin").get<std::vector<int64_t>>();
    piece.extent = json.at("extent").get<std::vector<int64_t>>();
  }
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

TensorRecord tensor_from(const Json& json) {
  TensorRecord tensor;
  try {
    tensor.dtype = parse_dtype(json.at("dtype").get<std::string>());
  } catch (const UsageError& error) {
    throw IoError(error.what());
  }
  tensor.shape = json.at("shape").get<std::vector<int64_t>>();
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
  json["files"] = Json::object();
  for (const auto& [name, file] : manifest.files)
    json["files"][name] = {{"bytes", file.bytes}, {"xxh3_128", file.checksum}};
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json pieces = Json::array();
    for (const PieceRecord& piece : tensor.pieces) pieces.push_back(box_of(piece));
    json["tensors"][name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"pieces", pieces}};
  }
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, std::string_view name) {
  const Json json = parse_json(text, name);
  try {
    if (json.at("format") != "espalier" || json.at("version") != kVersion)
      throw IoError(fmt::format("format {} version {} is not one this build reads (espalier {})",
                                json.at("format").dump(), json.at("version").dump(), kVersion));
    Manifest manifest;
    manifest.step = json.at("step").get<int64_t>();
    manifest.state = json.at("state");
    if (!manifest.state.is_object()) throw IoError("state is no object");
    if (json.contains("attempt")) manifest.attempt = json.at("attempt").get<std::string>();
    for (const auto& [file, record] : json.at("files").items()) {
      check_file_name(file);
      manifest.files[file] = {record.at("bytes").get<uint64_t>(), record.at("xxh3_128").get<std::string>()};
    }
    for (const auto& [tensor, record] : json.at("tensors").items()) {
      manifest.tensors.emplace(tensor, tensor_from(record));
      for (const PieceRecord& piece : manifest.tensors.find(tensor)->second.pieces)
        if (!manifest.files.contains(piece.file))
          throw IoError(fmt::format("{} lies in {}, which is not listed", tensor, piece.file));
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace esp::ckpt

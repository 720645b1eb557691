// Reads a SentencePiece .model: a protocol-buffer message with pieces, training parameters and normalization. Only
// fields that encoding needs are read; others are skipped. Every length is checked against the remaining bytes.
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/piece_tokenizer.h"

namespace esp::data {
namespace {

class ProtobufReader {
 public:
  ProtobufReader(std::string_view bytes, std::string_view what) : left_(bytes), what_(what) {}

  // Reads the next field: its number and its value (integer or bytes). Returns false at the end.
  bool next() {
    if (left_.empty()) return false;
    uint64_t tag = varint();
    field = static_cast<uint32_t>(tag >> 3);
    text = {};
    number = 0;
    if (field == 0 || (tag >> 3) > 0x1FFFFFFF) fail("a field has an invalid number");
    switch (tag & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        text = take(8);
        break;
      case 2:
        text = take(varint());
        break;
      case 5:
        text = take(4);
        break;
      default:
        fail("a field has an unknown wire type");
    }
    return true;
  }
  float real() const {
    float value = 0;
    if (text.size() != sizeof value) fail("a score is not four bytes");
    std::memcpy(&value, text.data(), sizeof value);
    if (!std::isfinite(value)) fail("a score is not finite");
    return value;
  }
  int32_t integer() const {  // a negative number is encoded in ten bytes
    return static_cast<int32_t>(static_cast<int64_t>(number));
  }
  [[noreturn]] void fail(std::string_view problem) const {
    throw IoError(fmt::format("{} is not a SentencePiece model: {}", what_, problem));
  }

  uint32_t field = 0;
  uint64_t number = 0;
  std::string_view text;

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_.empty()) break;
      uint8_t byte = static_cast<uint8_t>(left_[0]);
      left_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is longer than ten bytes or than the rest of the file");
  }
  std::string_view take(uint64_t bytes) {
    if (bytes > left_.size()) fail("a field is longer than the rest of the file");
    std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  std::string_view left_, what_;
};

ScoredPiece read_piece(std::string_view bytes, std::string_view what) {
  ScoredPiece piece;
  for (ProtobufReader message(bytes, what); message.next();) {
    if (message.field == 1) piece.text = message.text;
    if (message.field == 2) piece.score = message.real();
    if (message.field == 3) {
      if (message.number < 1 || message.number > 6) message.fail("a piece has an unknown type");
      piece.type = static_cast<PieceType>(message.number);
    }
  }
  return piece;
}

struct TrainerSpec {
  int32_t model_type = 1, unknown = 0, bos = 1, eos = 2, pad = -1;
  bool space_after = false;
};

TrainerSpec read_trainer_spec(std::string_view bytes, std::string_view what) {
  TrainerSpec trained;
  for (ProtobufReader message(bytes, what); message.next();) {
    switch (message.field) {
      case 3:
        trained.model_type = message.integer();
        break;
      case 24:
        trained.space_after = message.number != 0;
        break;
      case 40:
        trained.unknown = message.integer();
        break;
      case 41:
        trained.bos = message.integer();
        break;
      case 42:
        trained.eos = message.integer();
        break;
      case 43:
        trained.pad = message.integer();
        break;
      default:
        break;
    }
  }
  return trained;
}

void read_normalizer(std::string_view bytes, std::string_view what, PieceTokenizerParts& parts) {
  for (ProtobufReader message(bytes, what); message.next();) {
    switch (message.field) {
      case 2:
        parts.charsmap = Charsmap(message.text, what);
        break;
      case 3:
        parts.add_prefix = message.number != 0;
        break;
      case 4:
        parts.remove_extra_spaces = message.number != 0;
        break;
      case 5:
        parts.escape_spaces = message.number != 0;
        break;
      default:
        break;
    }
  }
}

// Returns the value of a byte piece, such as 10 for "<0x0A>"; -1 for any other name.
int byte_of(std::string_view name) {
  auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>' || digit(name[3]) < 0 || digit(name[4]) < 0)
    return -1;
  return digit(name[3]) * 16 + digit(name[4]);
}

}  // namespace

bool set_byte_pieces(PieceModelParts& model) {
  std::array<int32_t, 256>& ids = model.unknown.byte_ids;
  ids.fill(-1);
  for (size_t i = 0; i < model.pieces.size(); ++i)
    if (int byte = byte_of(model.pieces[i].text); byte >= 0 && ids[static_cast<size_t>(byte)] < 0) {
      ids[static_cast<size_t>(byte)] = static_cast<int32_t>(i);
      model.pieces[i].type = PieceType::byte;
    }
  for (int32_t id : ids)
    if (id < 0) return false;
  return true;
}

std::unique_ptr<Tokenizer> read_sentencepiece(std::string_view bytes, std::string_view what) {
  PieceTokenizerParts parts;
  TrainerSpec trained;
  bool has_bytes = false;
  for (ProtobufReader message(bytes, what); message.next();) {
    if (message.field == 1) {
      parts.model.pieces.push_back(read_piece(message.text, what));
      has_bytes |= parts.model.pieces.back().type == PieceType::byte;
    }
    if (message.field == 2) trained = read_trainer_spec(message.text, what);
    if (message.field == 3) read_normalizer(message.text, what, parts);
  }
  auto refuse = [&](std::string_view problem) { throw IoError(fmt::format("{}: {}", what, problem)); };
  int32_t size = static_cast<int32_t>(parts.model.pieces.size());
  if (size == 0) refuse("is not a SentencePiece model: it has no pieces");
  if (trained.model_type != 1 && trained.model_type != 2)
    refuse(fmt::format("model type {}; supported: 1 (unigram) and 2 (BPE)", trained.model_type));
  if (trained.space_after) refuse("puts spaces after words; only spaces before words are supported");
  if (trained.unknown < 0 || trained.unknown >= size ||
      parts.model.pieces[static_cast<size_t>(trained.unknown)].type != PieceType::unknown)
    refuse(fmt::format("its unk_id is {}, which is not a piece of type unknown", trained.unknown));
  parts.sentencepiece = true;
  parts.unigram = trained.model_type == 1;
  parts.model.what = what;
  parts.model.unknown.id = trained.unknown;
  if (has_bytes) {
    parts.model.unknown.as_bytes = set_byte_pieces(parts.model);
    if (!parts.model.unknown.as_bytes) refuse("has some byte pieces but not all 256");
  }
  for (const ScoredPiece& piece : parts.model.pieces)
    if (piece.type == PieceType::user_defined && !parts.charsmap.empty())
      refuse("has user-defined pieces and a normalization table; the two together are not supported");
  parts.decode_drops_space = parts.add_prefix;
  parts.file_name = "tokenizer.model";
  parts.source = bytes;
  auto role = [&](int32_t id) { return id >= 0 && id < size ? std::optional<int32_t>(id) : std::nullopt; };
  parts.special.bos = role(trained.bos);
  parts.special.eos = role(trained.eos);
  parts.special.pad = role(trained.pad);
  parts.special.unk = role(trained.unknown);
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

}  // namespace esp::data

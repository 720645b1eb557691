// Writes a byte-level BPE in the tokenizer.json format of Hugging Face's `tokenizers`.
#include <map>

#include <fmt/format.h>

#include "esp/data/tokenizer/byte_unicode.h"
#include "esp/data/tokenizer/tokenizer_json.h"

namespace esp::data {
namespace {

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (char letter : text) {
    uint8_t byte = static_cast<uint8_t>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += letter;
    }
  }
  out += '"';
}

void append_added(std::string& out, const std::vector<AddedToken>& added) {
  out += "\"added_tokens\":[";
  for (const AddedToken& token : added) {
    if (&token != added.data()) out += ',';
    out += fmt::format("\n{{\"id\":{},\"content\":{},\"single_word\":{},\"lstrip\":{},\"rstrip\":{},\"normalized\":{},",
                       token.id, quote_json(token.content), token.single_word, token.lstrip, token.rstrip,
                       token.normalized);
    out += fmt::format("\"special\":{}}}", token.special);
  }
  out += "],\n";
}

std::string pre_tokenizer(const BpeParts& parts) {
  auto byte_level = [&](bool use_regex) {
    return fmt::format("{{\"type\":\"ByteLevel\",\"add_prefix_space\":{},\"trim_offsets\":true,\"use_regex\":{}}}",
                       parts.add_prefix_space, use_regex);
  };
  if (parts.pattern == SplitPattern::gpt2) return byte_level(true);
  if (parts.pattern == SplitPattern::none) return byte_level(false);
  return fmt::format(
      "{{\"type\":\"Sequence\",\"pretokenizers\":[{{\"type\":\"Split\",\"pattern\":{{\"Regex\":{}}},"
      "\"behavior\":\"Isolated\",\"invert\":false}},{}]}}",
      quote_json(find_split_pattern(parts.pattern).expression), byte_level(false));
}

}  // namespace

std::string quote_json(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

std::string compose_tokenizer_json(const BpeParts& parts, const std::vector<AddedToken>& added,
                                   const Json& post_processor) {
  std::string out = "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n";
  append_added(out, added);
  out += "\"normalizer\":null,\n\"pre_tokenizer\":" + pre_tokenizer(parts) + ",\n";
  out += fmt::format("\"post_processor\":{},\n", post_processor.dump());
  out += "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n";
  std::string unknown = parts.unknown ? quote_json(bytes_to_unicode(parts.tokens.bytes(*parts.unknown))) : "null";
  out += fmt::format(
      "\"model\":{{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":{},\"continuing_subword_prefix\":null,"
      "\"end_of_word_suffix\":null,\"fuse_unk\":{},\"byte_fallback\":false,\"ignore_merges\":{},\n\"vocab\":{{",
      unknown, parts.fuse_unknown, parts.ignore_merges);
  // Added tokens are written into the vocabulary too: readers assign their own ids to added tokens that are not in it.
  std::map<int32_t, std::string> names;
  for (int32_t id = 0; id < parts.tokens.size(); ++id)
    if (parts.tokens.has(id)) names[id] = bytes_to_unicode(parts.tokens.bytes(id));
  for (const AddedToken& token : added) names[token.id] = token.content;
  bool first = true;
  for (const auto& [id, name] : names) {
    out += first ? "\n" : ",\n";
    first = false;
    append_quoted(out, name);
    out += fmt::format(":{}", id);
  }
  out += "},\n\"merges\":[";
  first = true;
  for (const Merge& merge : parts.merges) {
    out += first ? "\n[" : ",\n[";
    first = false;
    append_quoted(out, bytes_to_unicode(parts.tokens.bytes(merge.left)));
    out += ',';
    append_quoted(out, bytes_to_unicode(parts.tokens.bytes(merge.right)));
    out += ']';
  }
  out += "]}}\n";
  return out;
}

}  // namespace esp::data

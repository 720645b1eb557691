#include "esp/data/tokenizer/token_table.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/hashing.h"

namespace esp::data {

TokenTable::TokenTable(std::vector<std::pair<std::string, int32_t>> tokens, std::string_view what) {
  size_t total = 0;
  for (const auto& [bytes, id] : tokens) {
    if (id < 0) throw IoError(fmt::format("{}: the token \"{}\" has the id {}; expected an id >= 0", what, bytes, id));
    // Holes (reserved ids) are legal, but a file of ten tokens must not allocate a table of a billion entries.
    if (static_cast<size_t>(id) > 2 * tokens.size() + 65536)
      throw IoError(fmt::format("{}: got the id {} in a vocabulary of {} tokens; expected at most {}", what, id,
                                tokens.size(), 2 * tokens.size() + 65536));
    total += bytes.size();
  }
  if (total > UINT32_MAX)
    throw IoError(fmt::format("{}: its tokens have {} bytes; expected less than 4 GiB", what, total));
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.second < b.second; });

  size_t rows = tokens.empty() ? 0 : static_cast<size_t>(tokens.back().second) + 1;
  pool_.reserve(total);
  starts_.assign(rows + 1, 0);
  present_.assign(rows, false);
  slots_.assign(std::bit_ceil(2 * tokens.size() + 2), -1);
  mask_ = slots_.size() - 1;
  size_t row = 0;
  for (const auto& [bytes, id] : tokens) {
    for (; row <= static_cast<size_t>(id); ++row) starts_[row] = static_cast<uint32_t>(pool_.size());
    if (present_[static_cast<size_t>(id)]) throw IoError(fmt::format("{}: two tokens have the id {}", what, id));
    if (find(bytes)) throw IoError(fmt::format("{}: the token \"{}\" occurs twice", what, bytes));
    present_[static_cast<size_t>(id)] = true;
    pool_ += bytes;
    starts_[row] = static_cast<uint32_t>(pool_.size());
    longest_ = std::max(longest_, bytes.size());
    size_t slot = hash_bytes(bytes) & mask_;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask_;
    slots_[slot] = id;
  }
}

std::optional<int32_t> TokenTable::find(std::string_view wanted) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t slot = hash_bytes(wanted) & mask_; slots_[slot] >= 0; slot = (slot + 1) & mask_)
    if (bytes(slots_[slot]) == wanted) return slots_[slot];
  return std::nullopt;
}

}  // namespace esp::data

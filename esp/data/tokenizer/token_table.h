// Maps ids to byte strings and back. All bytes are stored in one pool. Immutable after construction and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esp::data {

class TokenTable {
 public:
  // `what` names the source in errors. IoError for: an id below 0, two tokens with one id, the same bytes twice, or an
  // id so large that the table would be much larger than the input.
  TokenTable(std::vector<std::pair<std::string, int32_t>> tokens, std::string_view what);
  TokenTable() = default;

  int32_t size() const { return static_cast<int32_t>(starts_.size()) - 1; }  // largest id + 1
  bool has(int32_t id) const { return id >= 0 && id < size() && present_[static_cast<size_t>(id)]; }
  std::string_view bytes(int32_t id) const {  // empty for an unused id
    size_t at = static_cast<size_t>(id);
    return std::string_view(pool_).substr(starts_[at], starts_[at + 1] - starts_[at]);
  }
  std::optional<int32_t> find(std::string_view bytes) const;
  size_t longest() const { return longest_; }

 private:
  std::string pool_;
  std::vector<uint32_t> starts_{0};
  std::vector<bool> present_;
  std::vector<int32_t> slots_;  // open-addressing hash table of ids; -1 is a free slot
  size_t mask_ = 0, longest_ = 0;
};

}  // namespace esp::data

#include "esp/data/tokenizer/word_counts.h"

#include <algorithm>
#include <deque>
#include <map>

#include "esp/data/tokenizer/hashing.h"
#include "esp/data/tokenizer/parallel_parts.h"

namespace esp::data {
namespace {

constexpr size_t kShards = 32, kSliceBytes = size_t{1} << 20;

}  // namespace

// Open-addressing map from word to count. It refers to words owned by the caller, or copies them into blocks if
// `keeps_words`.
class WordCounts::Map {
 public:
  struct Entry {
    uint64_t hash;
    const char* data;
    size_t bytes;
    int64_t count;  // 0: free slot
    std::string_view word() const { return {data, bytes}; }
  };

  explicit Map(bool keeps_words) : keeps_words_(keeps_words), slots_(1024) {}

  void add(std::string_view word, uint64_t hash, int64_t count) {
    size_t mask = slots_.size() - 1;
    for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
      Entry& entry = slots_[slot];
      if (entry.count == 0) {
        entry = {hash, keeps_words_ ? copy(word) : word.data(), word.size(), count};
        if (++used_ * 2 > slots_.size()) grow();
        return;
      }
      if (entry.hash == hash && entry.word() == word) {
        entry.count += count;
        return;
      }
    }
  }
  size_t size() const { return used_; }
  const std::vector<Entry>& slots() const { return slots_; }

 private:
  void grow() {
    std::vector<Entry> old(slots_.size() * 2);
    old.swap(slots_);
    size_t mask = slots_.size() - 1;
    for (const Entry& entry : old) {
      if (entry.count == 0) continue;
      size_t slot = entry.hash & mask;
      while (slots_[slot].count != 0) slot = (slot + 1) & mask;
      slots_[slot] = entry;
    }
  }
  const char* copy(std::string_view word) {
    constexpr size_t kBlock = size_t{1} << 16;
    if (blocks_.empty() || blocks_.back().size() + word.size() > blocks_.back().capacity()) {
      blocks_.emplace_back();
      blocks_.back().reserve(std::max(kBlock, word.size()));
    }
    std::string& block = blocks_.back();
    size_t at = block.size();
    block.append(word);  // stays within the reserved capacity, so earlier words do not move
    return block.data() + at;
  }

  bool keeps_words_;
  size_t used_ = 0;
  std::vector<Entry> slots_;
  std::deque<std::string> blocks_;
};

WordCounts::WordCounts(const Options& options) : options_(options) {
  for (size_t i = 0; i < kShards; ++i) shards_.push_back(std::make_unique<Map>(true));
}

WordCounts::~WordCounts() = default;

void WordCounts::add(std::string_view text) {
  bytes_ += text.size();
  batch_bytes_ += text.size();
  batch_.emplace_back(text);
  if (batch_bytes_ >= options_.batch_bytes) count_batch();
}

void WordCounts::count_batch() {
  // A slice consists of whole texts. The number of slices depends only on the texts, not on the threads.
  std::vector<size_t> cuts{0};
  size_t bytes = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    bytes += batch_[i].size();
    if (bytes >= kSliceBytes || i + 1 == batch_.size()) {
      cuts.push_back(i + 1);
      bytes = 0;
    }
  }
  // The words of a slice are grouped by shard, so that adding them touches one shard at a time.
  constexpr size_t kShift = 64 - 5;
  static_assert(kShards == 32);
  std::vector<std::vector<std::vector<Map::Entry>>> counted(cuts.size() - 1);
  parallel_for_parts(counted.size(), options_.threads, [&](size_t slice) {
    Map map(false);
    for (size_t i = cuts[slice]; i < cuts[slice + 1]; ++i)
      for_each_piece(options_.pattern, batch_[i], [&](std::string_view word) { map.add(word, hash_bytes(word), 1); });
    counted[slice].resize(kShards);
    for (const Map::Entry& entry : map.slots())
      if (entry.count > 0) counted[slice][entry.hash >> kShift].push_back(entry);
  });
  parallel_for_parts(kShards, options_.threads, [&](size_t shard) {
    for (const auto& slice : counted)
      for (const Map::Entry& entry : slice[shard]) shards_[shard]->add(entry.word(), entry.hash, entry.count);
  });
  batch_.clear();
  batch_bytes_ = 0;
  size_t words = 0;
  for (const auto& shard : shards_) words += shard->size();
  if (words > options_.max_words) drop_rare();
}

void WordCounts::drop_rare() {
  std::map<int64_t, size_t> words_of_count;
  for (const auto& shard : shards_)
    for (const Map::Entry& entry : shard->slots())
      if (entry.count > 0) ++words_of_count[std::min<int64_t>(entry.count, 1 << 20)];
  size_t words = 0;
  for (const auto& [count, number] : words_of_count) words += number;
  int64_t floor = 0;  // the lowest count such that all words above it fit into three quarters of max_words
  for (const auto& [count, number] : words_of_count) {
    if (words <= options_.max_words / 4 * 3) break;
    words -= number;
    floor = count;
  }
  for (auto& shard : shards_) {
    auto kept = std::make_unique<Map>(true);
    for (const Map::Entry& entry : shard->slots()) {
      if (entry.count > floor)
        kept->add(entry.word(), entry.hash, entry.count);
      else
        dropped_ += static_cast<uint64_t>(entry.count);
    }
    shard = std::move(kept);
  }
}

std::vector<std::pair<std::string, int64_t>> WordCounts::finish() {
  if (!batch_.empty()) count_batch();
  std::vector<std::pair<std::string, int64_t>> words;
  for (auto& shard : shards_) {
    for (const Map::Entry& entry : shard->slots())
      if (entry.count > 0) words.emplace_back(entry.word(), entry.count);
    shard = std::make_unique<Map>(true);
  }
  std::sort(words.begin(), words.end());
  return words;
}

}  // namespace esp::data

#include "esp/data/tokenizer/bpe_train.h"

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/text_reader.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/byte_unicode.h"
#include "esp/data/tokenizer/parallel_parts.h"

namespace esp::data {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;
constexpr size_t kWordsAtOnce = size_t{1} << 16;
constexpr size_t kWorthThreads = 4096;  // minimum number of words to rewrite in parallel

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

struct Change {
  uint64_t pair;
  uint32_t word;
  int64_t count;
};

// All words as symbols in one pool, with the count of each adjacent pair and the words that contain it.
class PairCounts {
 public:
  PairCounts(const std::vector<std::pair<std::string, int64_t>>& words, const std::array<int32_t, 256>& byte_ids,
             int threads)
      : threads_(threads) {
    size_t total = 0;
    for (const auto& [word, count] : words) total += word.size();
    pool_.reserve(total);
    for (const auto& [word, count] : words) {
      rows_.push_back({pool_.size(), static_cast<uint32_t>(word.size()), count});
      for (char byte : word) pool_.push_back(byte_ids[static_cast<uint8_t>(byte)]);
    }
    // Counts in blocks of words, so that the list of changes stays small.
    size_t parts = static_cast<size_t>(threads);
    for (size_t first = 0; first < rows_.size(); first += kWordsAtOnce) {
      size_t count = std::min(kWordsAtOnce, rows_.size() - first);
      std::vector<std::vector<Change>> changes(parts);
      parallel_for_parts(parts, threads, [&](size_t part) {
        for (size_t w = first + count * part / parts; w < first + count * (part + 1) / parts; ++w)
          for (uint32_t i = 0; i + 1 < rows_[w].size; ++i)
            changes[part].push_back({pair_of(at(w)[i], at(w)[i + 1]), static_cast<uint32_t>(w), rows_[w].count});
      });
      for (const auto& part : changes) apply(part);
    }
    flush();
  }

  // Pops the most frequent pair (lower ids among equals). Returns false if no pair occurs at least `least` times.
  bool pop(int64_t least, uint64_t& pair) {
    while (!heap_.empty()) {
      Candidate top = heap_.top();
      heap_.pop();
      int64_t now = pairs_[top.pair].count;
      if (now != top.count) {  // outdated: a neighbour was merged since; push it again with its current count
        if (now > 0) heap_.push({now, top.pair});
        continue;
      }
      if (top.count < std::max<int64_t>(least, 1)) return false;
      pair = top.pair;
      return true;
    }
    return false;
  }

  void merge(uint64_t pair, int32_t id) {
    std::vector<uint32_t> where = std::move(pairs_[pair].words);
    pairs_.erase(pair);
    size_t parts = where.size() >= kWorthThreads ? static_cast<size_t>(threads_) : 1;
    std::vector<std::vector<Change>> changes(parts);
    if (parts > 1) {  // a word may be listed twice, and two threads must not rewrite the same word
      std::sort(where.begin(), where.end());
      where.erase(std::unique(where.begin(), where.end()), where.end());
    }
    parallel_for_parts(parts, threads_, [&](size_t part) {
      for (size_t i = where.size() * part / parts; i < where.size() * (part + 1) / parts; ++i)
        rewrite(where[i], pair, id, changes[part]);
    });
    for (const auto& part : changes) apply(part);
    pairs_.erase(pair);  // overlapping pairs ("aaa") may have inserted it again with a negative count
    flush();
  }

 private:
  struct Row {
    size_t begin;
    uint32_t size;
    int64_t count;
  };
  struct PairInfo {
    int64_t count = 0;
    std::vector<uint32_t> words;  // may contain duplicates and words that no longer have the pair
    bool grew = false;
  };
  struct Candidate {
    int64_t count;
    uint64_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  int32_t* at(size_t word) { return pool_.data() + rows_[word].begin; }

  void rewrite(uint32_t word, uint64_t pair, int32_t id, std::vector<Change>& changes) {
    int32_t left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    Row& row = rows_[word];
    int32_t* symbols = at(word);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < row.size;) {
      if (i + 1 >= row.size || symbols[i] != left || symbols[i + 1] != right) {
        symbols[kept++] = symbols[i++];
        continue;
      }
      if (kept > 0) {
        changes.push_back({pair_of(symbols[kept - 1], left), word, -row.count});
        changes.push_back({pair_of(symbols[kept - 1], id), word, row.count});
      }
      if (i + 2 < row.size) {
        changes.push_back({pair_of(right, symbols[i + 2]), word, -row.count});
        changes.push_back({pair_of(id, symbols[i + 2]), word, row.count});
      }
      symbols[kept++] = id;
      i += 2;
    }
    row.size = kept;
  }

  void apply(const std::vector<Change>& changes) {
    for (const Change& change : changes) {
      PairInfo& info = pairs_[change.pair];
      info.count += change.count;
      if (change.count < 0) continue;
      if (info.words.empty() || info.words.back() != change.word) info.words.push_back(change.word);
      if (!info.grew) grown_.push_back(change.pair);
      info.grew = true;
    }
  }
  void flush() {
    for (uint64_t pair : grown_) {
      auto row = pairs_.find(pair);
      if (row == pairs_.end()) continue;
      row->second.grew = false;
      if (row->second.count > 0) heap_.push({row->second.count, pair});
    }
    grown_.clear();
  }

  struct Hash {
    size_t operator()(uint64_t pair) const { return mix(pair, 0); }
  };
  int threads_;
  std::vector<int32_t> pool_;
  std::vector<Row> rows_;
  std::unordered_map<uint64_t, PairInfo, Hash> pairs_;
  std::vector<uint64_t> grown_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

BpeTrainer::BpeTrainer(const BpeTrainOptions& options)
    : options_(options),
      counts_({.pattern = options.pattern, .threads = options.threads, .max_words = options.max_words}) {
  size_t least = options.special.size() + 256;
  if (options.vocab_size < 0 || static_cast<size_t>(options.vocab_size) < least)
    throw UsageError(fmt::format("vocabulary size {} is too small for 256 bytes and {} special tokens: must be >= {}",
                                 options.vocab_size, options.special.size(), least));
  if (options.threads < 1) throw UsageError(fmt::format("threads: got {}; expected at least 1", options.threads));
}

void BpeTrainer::add(std::string_view text) {
  counts_.add(text);
}

// Reads chunks of about 4 MiB, cut after the last line end: in nearly every split pattern that is a word boundary.
void BpeTrainer::add_inputs(const std::vector<Input>& inputs, const std::string& text_key) {
  TextReader reader(inputs, {.text_key = text_key, .chunk_bytes = kReadBytes});
  for (TextChunk piece; reader.next(piece);) counts_.add(piece.text);
}

std::unique_ptr<ByteBpe> BpeTrainer::train(const std::function<void(int32_t)>& progress) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  std::unordered_map<std::string, int32_t> ids;
  auto id_for = [&](std::string bytes) {
    auto [row, fresh] = ids.emplace(bytes, static_cast<int32_t>(tokens.size()));
    if (fresh) tokens.emplace_back(std::move(bytes), row->second);
    return row->second;
  };
  BpeParts parts;
  for (const std::string& name : options_.special) parts.added.push_back({name, id_for(name)});
  std::array<uint8_t, 256> bytes;
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  std::sort(bytes.begin(), bytes.end(), [](uint8_t a, uint8_t b) { return byte_to_unicode(a) < byte_to_unicode(b); });
  std::array<int32_t, 256> byte_ids;
  for (uint8_t byte : bytes) byte_ids[byte] = id_for(std::string(1, static_cast<char>(byte)));

  PairCounts words(counts_.finish(), byte_ids, options_.threads);
  uint64_t pair;
  while (static_cast<int32_t>(tokens.size()) < options_.vocab_size && words.pop(options_.min_count, pair)) {
    int32_t left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
    int32_t id = id_for(tokens[static_cast<size_t>(left)].first + tokens[static_cast<size_t>(right)].first);
    parts.merges.push_back({left, right, id, static_cast<uint32_t>(parts.merges.size())});
    words.merge(pair, id);
    if (progress && tokens.size() % 256 == 0) progress(static_cast<int32_t>(tokens.size()));
  }
  parts.pattern = options_.pattern;
  parts.tokens = TokenTable(std::move(tokens), "the trained vocabulary");
  return std::make_unique<ByteBpe>(std::move(parts));
}

}  // namespace esp::data

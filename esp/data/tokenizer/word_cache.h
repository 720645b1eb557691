// Lock-free cache from short words to their ids. A fixed table with one cache line per entry; a newer word replaces an
// older one.
//
// Any thread may read and write at any time. Each entry has a sequence number that changes with every write, and a
// kWriting flag that is set during a write (a sequence lock, Boehm 2012). If the flag is set, a reader reports a miss,
// and a second writer does not store its entry. Every 64-bit field of an entry is stored with release order and loaded
// with acquire order, so a reader that sees part of a newer entry also sees the changed head.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include "esp/data/tokenizer/hashing.h"

namespace esp::data {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 24, kMaxIds = 8;

  struct WordKey {
    std::array<uint64_t, 3> words;
    uint64_t hash;
  };

  explicit WordCache(size_t entries = size_t{1} << 15) : mask_(entries - 1), entries_(new Entry[entries]) {}

  // `readable` bytes may be read from word.data() (at least word.size()): a full 24-byte load is faster than an exact
  // copy.
  static WordKey key_of(std::string_view word, size_t readable) {
    WordKey key{};
    if (readable >= kMaxBytes) [[likely]] {
      std::memcpy(key.words.data(), word.data(), kMaxBytes);
      size_t n = word.size();
      key.words[0] &= n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * n)) - 1;
      key.words[1] &= n >= 16 ? ~uint64_t{0} : n <= 8 ? 0 : (uint64_t{1} << (8 * (n - 8))) - 1;
      key.words[2] &= n >= 24 ? ~uint64_t{0} : n <= 16 ? 0 : (uint64_t{1} << (8 * (n - 16))) - 1;
    } else {
      std::memcpy(key.words.data(), word.data(), word.size());
    }
    key.hash = mix(mix(key.words[0] + word.size(), key.words[1]), key.words[2] ^ word.size());
    return key;
  }

  // Copies the ids to `ids`, which must have room for kMaxIds. Returns their number, or -1 if the word is not cached.
  int find(const WordKey& key, size_t bytes, int32_t* ids) const {
    const Entry& entry = entries_[key.hash & mask_];
    uint64_t head = entry.head.load(std::memory_order_acquire);
    if (((head >> 8) & 0xFF) != bytes || (head & kWriting)) return -1;
    for (size_t i = 0; i < 3; ++i)
      if (entry.key[i].load(std::memory_order_acquire) != key.words[i]) return -1;
    int count = static_cast<int>(head & 0xF);
    // Copies all kMaxIds ids, two per 64-bit load, without a branch per id.
    for (size_t i = 0; i < kMaxIds / 2; ++i) {
      uint64_t two = entry.ids[i].load(std::memory_order_acquire);
      std::memcpy(ids + 2 * i, &two, 8);
    }
    return entry.head.load(std::memory_order_relaxed) == head ? count : -1;
  }

  void insert(const WordKey& key, size_t bytes, std::span<const int32_t> ids) const {
    if (ids.size() > kMaxIds) return;
    Entry& entry = entries_[key.hash & mask_];
    uint64_t head = entry.head.load(std::memory_order_relaxed);
    if ((head & kWriting) || !entry.head.compare_exchange_strong(head, head | kWriting, std::memory_order_acquire))
      return;
    for (size_t i = 0; i < 3; ++i) entry.key[i].store(key.words[i], std::memory_order_release);
    std::array<uint64_t, kMaxIds / 2> packed{};
    if (!ids.empty()) std::memcpy(packed.data(), ids.data(), ids.size_bytes());
    for (size_t i = 0; i < packed.size(); ++i) entry.ids[i].store(packed[i], std::memory_order_release);
    uint64_t sequence = (head >> 16) + 1;
    entry.head.store(sequence << 16 | uint64_t{bytes} << 8 | ids.size(), std::memory_order_release);
  }

 private:
  static constexpr uint64_t kWriting = 0x80;
  // head: sequence number | length of the word in bytes (0: empty entry) | kWriting | number of ids.
  struct alignas(64) Entry {
    std::atomic<uint64_t> head{0};
    std::array<std::atomic<uint64_t>, 3> key{};
    std::array<std::atomic<uint64_t>, kMaxIds / 2> ids{};
  };

  size_t mask_;
  std::unique_ptr<Entry[]> entries_;
};

}  // namespace esp::data

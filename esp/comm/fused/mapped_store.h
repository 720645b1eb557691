// A Store for ranks forked from one process: a small map in anonymous shared memory, made before the fork. For tests and
// timing programs that need ranks as processes and nothing else. Any process and thread may call.
#pragma once

#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/store.h"

namespace esp::comm {

class MappedStore final : public net::Store {
 public:
  MappedStore() {
    void* mapped = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ESP_CHECK(mapped != MAP_FAILED);
    table_ = new (mapped) Table;
  }
  ~MappedStore() override { munmap(table_, sizeof(Table)); }
  MappedStore(const MappedStore&) = delete;
  MappedStore& operator=(const MappedStore&) = delete;

  void set(std::string_view key, std::string_view value) override {
    Lock lock(*table_);
    put(key, value);
  }
  std::string get(std::string_view key, Deadline deadline) override {
    for (;;) {
      if (auto found = try_get(key)) return *found;
      if (deadline.passed()) throw CommError(CommError::Kind::timeout, -1, "no key " + std::string(key));
      sched_yield();
    }
  }
  std::optional<std::string> try_get(std::string_view key) override {
    Lock lock(*table_);
    Row* row = find(key);
    return row ? std::optional<std::string>(row->value) : std::nullopt;
  }
  int64_t add(std::string_view key, int64_t delta) override {
    Lock lock(*table_);
    Row* row = find(key);
    int64_t sum = (row ? std::stoll(row->value) : 0) + delta;
    put(key, std::to_string(sum));
    return sum;
  }
  void erase(std::string_view key) override {
    Lock lock(*table_);
    if (Row* row = find(key)) row->key[0] = '\0';
  }

 private:
  static constexpr size_t kRows = 512, kText = 120;
  struct Row {
    char key[kText] = "", value[kText] = "";
  };
  struct Table {
    std::atomic_flag held;
    Row rows[kRows];
  };
  struct Lock {
    explicit Lock(Table& held) : table(held) {
      while (table.held.test_and_set(std::memory_order_acquire)) sched_yield();
    }
    ~Lock() { table.held.clear(std::memory_order_release); }
    Table& table;
  };
  Row* find(std::string_view key) {
    for (Row& row : table_->rows)
      if (row.key == key) return &row;
    return nullptr;
  }
  void put(std::string_view key, std::string_view value) {
    Row* row = find(key);
    if (!row) row = find("");
    ESP_CHECK(row && key.size() < kText && value.size() < kText, "{} = {}", key, value);
    std::memcpy(row->key, key.data(), key.size());
    row->key[key.size()] = '\0';
    std::memcpy(row->value, value.data(), value.size());
    row->value[value.size()] = '\0';
  }

  Table* table_;
};

}  // namespace esp::comm

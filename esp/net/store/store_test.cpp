// Tests that every implementation of Store must pass.
#include "esp/net/store.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/net/child_process.h"
#include "esp/net/handshake.h"
#include "esp/net/store/file_store.h"
#include "esp/net/store/hub.h"
#include "esp/net/store/hub_store.h"
#include "esp/net/store/memory_store.h"

namespace esp::net {
namespace {

Deadline soon() {
  return Deadline::after_ms(20'000);
}

// A store and a second client of it, as another rank would have.
class Pair {
 public:
  virtual ~Pair() = default;
  virtual Store& one() = 0;
  virtual Store& other() = 0;
};

class MemoryPair : public Pair {
 public:
  Store& one() override { return store_; }
  Store& other() override { return store_; }

 private:
  MemoryStore store_;
};

class Directory {
 public:
  Directory() {
    std::string pattern = testing::TempDir() + "esp-store-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FilePair : public Pair {
 public:
  Store& one() override { return one_; }
  Store& other() override { return other_; }

 private:
  Directory directory_;
  FileStore one_{directory_.path()}, other_{directory_.path()};
};

HubOptions hub_options(int size) {
  HubOptions options;
  options.size = size;
  options.job = "job";
  options.secret = Secret(std::string(32, 's'));
  return options;
}

std::unique_ptr<HubStore> connect(const Hub& hub, int rank) {
  HandshakeRequest request{Role::store, rank, "job", 0, 0};
  auto socket = connect_to(hub.address(), hub.port(), Secret(std::string(32, 's')), request, "", soon());
  return std::make_unique<HubStore>(std::move(socket), HubStore::Options{std::chrono::seconds(20)}, soon());
}

class HubPair : public Pair {
 public:
  Store& one() override { return *one_; }
  Store& other() override { return *other_; }

 private:
  Hub hub_{hub_options(2)};
  std::unique_ptr<HubStore> one_ = connect(hub_, 0), other_ = connect(hub_, 1);
};

struct Row {
  const char* name;
  std::function<std::unique_ptr<Pair>()> make;
};

class StoreTest : public testing::TestWithParam<Row> {
 protected:
  std::unique_ptr<Pair> pair_ = GetParam().make();
  Store& one_ = pair_->one();
  Store& other_ = pair_->other();
};

TEST_P(StoreTest, OneClientGetsValueSetByAnother) {
  one_.set("greeting", "hello");
  EXPECT_EQ(other_.get("greeting", soon()), "hello");
  other_.set("greeting", "goodbye");
  EXPECT_EQ(one_.try_get("greeting"), "goodbye");
}

TEST_P(StoreTest, KeepsArbitraryBytesInValues) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  one_.set("bytes", all);
  EXPECT_EQ(other_.try_get("bytes"), all);
  one_.set("empty", "");
  EXPECT_EQ(other_.try_get("empty"), "");
}

TEST_P(StoreTest, KeepsKeysOfArbitraryBytesDistinct) {
  std::string long_a = std::string(kMaxKeyBytes - 1, '/') + "a", long_b = std::string(kMaxKeyBytes - 1, '/') + "b";
  int i = 0;
  std::vector<std::string> keys = {"a/b", "a%2fb", "a b", "..", "A/b", long_a, long_b, std::string("a\0b", 3)};
  for (const auto& key : keys) one_.set(key, std::to_string(i++));
  i = 0;
  for (const auto& key : keys) EXPECT_EQ(other_.try_get(key), std::to_string(i++));
}

TEST_P(StoreTest, GetWaitsUntilKeyIsSet) {
  std::atomic<bool> set = false;
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    set = true;
    other_.set("late", "1");
  });
  EXPECT_EQ(one_.get("late", soon()), "1");
  EXPECT_TRUE(set);
  setter.join();
}

TEST_P(StoreTest, GetTimesOutAtDeadline) {
  try {
    one_.get("never", Deadline::after_ms(20));
    FAIL() << "the key was not set";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::timeout);
  }
  one_.set("never", "after all");
  EXPECT_EQ(one_.get("never", soon()), "after all") << "a get that timed out must not affect later calls";
}

TEST_P(StoreTest, AddCountsEveryCallOnce) {
  constexpr int kThreads = 4, kEach = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) (t % 2 ? one_ : other_).add("counter", 1);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(one_.add("counter", -1), kThreads * kEach - 1);
  EXPECT_EQ(other_.get("counter", soon()), std::to_string(kThreads * kEach - 1));
}

TEST_P(StoreTest, AddRejectsNonNumbersAndOverflow) {
  one_.set("text", "12x");
  EXPECT_THROW(one_.add("text", 1), UsageError);
  EXPECT_EQ(one_.try_get("text"), "12x");
  one_.add("big", INT64_MAX);
  EXPECT_THROW(one_.add("big", 1), UsageError);
  EXPECT_EQ(one_.add("big", 0), INT64_MAX);
}

TEST_P(StoreTest, EraseRemovesKey) {
  one_.set("key", "value");
  other_.erase("key");
  other_.erase("key");
  EXPECT_EQ(one_.try_get("key"), std::nullopt);
}

TEST_P(StoreTest, RejectsKeysAndValuesOutOfBounds) {
  EXPECT_THROW(one_.set("", "x"), UsageError);
  EXPECT_THROW(one_.set(std::string(kMaxKeyBytes + 1, 'k'), "x"), UsageError);
  EXPECT_THROW(one_.set("k", std::string(kMaxValueBytes + 1, 'v')), UsageError);
  one_.set(std::string(kMaxKeyBytes, 'k'), std::string(kMaxValueBytes, 'v'));
  EXPECT_EQ(other_.get(std::string(kMaxKeyBytes, 'k'), soon()).size(), kMaxValueBytes);
}

TEST_P(StoreTest, EachThreadOfClientGetsItsReplies) {
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        std::string key = fmt::format("k{}/{}", t, i);
        std::thread setter([&] { other_.set(key, key + "!"); });
        right += one_.get(key, soon()) == key + "!";
        setter.join();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 160);
}

const Row kRows[] = {{"memory", [] { return std::make_unique<MemoryPair>(); }},
                     {"file", [] { return std::make_unique<FilePair>(); }},
                     {"hub", [] { return std::make_unique<HubPair>(); }}};
INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, testing::ValuesIn(kRows),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(FileStore, SharesValuesAcrossProcesses) {
  Directory directory;
  std::vector<ChildProcess> children;
  for (int child = 0; child < 3; ++child)
    children.emplace_back([&](ChildProcess& parent) {
      FileStore store(directory.path());
      for (int i = 0; i < 40; ++i) store.add("counter", 1);
      parent.write_line(store.get("go", soon()));
    });
  FileStore store(directory.path());
  store.set("go", "now");
  for (ChildProcess& child : children) EXPECT_EQ(child.read_line(), "now");
  EXPECT_EQ(store.add("counter", 0), 120);
}

TEST(FileStore, RemovesTemporaryFilesOfDeadProcesses) {
  Directory directory;
  const std::string temporary = directory.path() + "/temporary-0123";
  std::ofstream(temporary) << "half";
  FileStore store(directory.path());
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

TEST(FileStore, RejectsDirectoryWritableByOthers) {
  Directory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  EXPECT_THROW(FileStore(directory.path()), IoError);
}

TEST(HubStore, ReportsFullStore) {
  Hub hub(hub_options(1));
  auto store = connect(hub, 0);
  std::string value(kMaxValueBytes, 'v');
  int kept = 0;
  try {
    for (; kept < 2000; ++kept) store->set(std::to_string(kept), value);
    FAIL() << "the store accepted 128 MiB; its limit is 64 MiB";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::refused);
  }
  EXPECT_GT(kept, 1000);
  store->erase("0");
  store->set("again", value);
}

TEST(HubStore, ReportsClosedHub) {
  auto hub = std::make_unique<Hub>(hub_options(1));
  auto store = connect(*hub, 0);
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    hub.reset();
  });
  try {
    store->get("key", soon());
    FAIL() << "get() returned, but the Hub is closed";
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::lost);
    EXPECT_STREQ(error.what(), "rank 0 closed its connection");
  }
  closer.join();
  EXPECT_THROW(store->set("key", "value"), CommError);
}

}  // namespace
}  // namespace esp::net

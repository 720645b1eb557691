#include "esp/obs/event_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <limits>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/obs/temporary_folder.h"

namespace esp::obs {
namespace {

void append_raw(const std::string& path, std::string_view text) {
  File(path, O_WRONLY | O_CREAT | O_APPEND).write_all(text);
}

std::string message_of(auto&& call) {
  try {
    call();
  } catch (const IoError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(EventLog, ReadsLinesInOrder) {
  TemporaryFolder folder;
  EventLog log(folder / "metrics.jsonl");
  for (int i = 0; i < 5; ++i) log.append({{"step", i}, {"text", "two\nlines"}});
  EventBatch batch = read_events(folder / "metrics.jsonl");
  ASSERT_EQ(batch.events.size(), 5u);
  EXPECT_EQ(batch.events[4]["step"], 4);
  EXPECT_EQ(batch.events[4]["text"], "two\nlines");
  EXPECT_FALSE(batch.torn);
}

TEST(EventLog, ReadsFromAnOffset) {
  TemporaryFolder folder;
  EventLog log(folder / "log");
  log.append({{"a", 1}});
  EventBatch first = read_events(folder / "log");
  log.append({{"a", 2}});
  EventBatch second = read_events(folder / "log", first.next_offset);
  ASSERT_EQ(second.events.size(), 1u);
  EXPECT_EQ(second.events[0]["a"], 2);
  EXPECT_TRUE(read_events(folder / "log", second.next_offset).events.empty());
  EXPECT_NE(message_of([&] { read_events(folder / "log", 1 << 20); }).find("cannot read from byte"), std::string::npos);
}

TEST(EventLog, ReadsALimitedNumberOfBytes) {
  TemporaryFolder folder;
  EventLog log(folder / "log");
  for (int i = 0; i < 100; ++i) log.append({{"i", i}});
  uint64_t offset = 0;
  int seen = 0;
  for (int pieces = 0; pieces < 1000 && seen < 100; ++pieces) {
    EventBatch batch = read_events(folder / "log", offset, 32);
    EXPECT_LE(batch.next_offset - offset, 32u);
    for (const Json& event : batch.events) EXPECT_EQ(event["i"], seen++);
    offset = batch.next_offset;
  }
  EXPECT_EQ(seen, 100);
  EXPECT_NE(message_of([&] { read_events(folder / "log", 0, 3); }).find("longer than 3"), std::string::npos);
}

TEST(EventLog, ReaderSkipsAnIncompleteLastLineAndNextWriterRemovesIt) {
  TemporaryFolder folder;
  std::string path = folder / "log";
  append_raw(path, "{\"step\":1}\n{\"step\":2,\"lo");
  EventBatch batch = read_events(path);
  EXPECT_TRUE(batch.torn);
  EXPECT_EQ(batch.events.size(), 1u);
  EventLog log(path);
  log.append({{"step", 2}});
  batch = read_events(path);
  EXPECT_FALSE(batch.torn);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[1]["step"], 2);
}

TEST(EventLog, EmptiesAFileThatHasOnlyAnIncompleteLine) {
  TemporaryFolder folder;
  append_raw(folder / "log", std::string(200'000, 'x'));
  EventLog log(folder / "log");
  EXPECT_TRUE(read_events(folder / "log").events.empty());
}

TEST(EventLog, ReportsTheNumberOfAnInvalidLine) {
  TemporaryFolder folder;
  append_raw(folder / "log", "{}\n{\"a\":}\n{}\n");
  EXPECT_NE(message_of([&] { read_events(folder / "log"); }).find("log line 2"), std::string::npos);
  append_raw(folder / "list", "[1]\n");
  EXPECT_NE(message_of([&] { read_events(folder / "list"); }).find("expected a JSON object"), std::string::npos);
  EXPECT_NE(message_of([&] { read_events(folder / "none"); }).find("ENOENT"), std::string::npos);
}

TEST(EventLog, WritesBufferedLinesTogether) {
  TemporaryFolder folder;
  {
    EventLog log(folder / "log", {.lines_per_write = 3, .sync = true});
    for (int i = 0; i < 4; ++i) log.append({{"i", i}});
    EXPECT_EQ(read_events(folder / "log").events.size(), 3u);
  }
  EXPECT_EQ(read_events(folder / "log").events.size(), 4u);
}

TEST(EventLog, WritesTimestampsAndNonFiniteNumbersAsNull) {
  TemporaryFolder folder;
  EventLog log(folder / "log", {.stamp = true});
  log.append({{"loss", std::numeric_limits<double>::quiet_NaN()}});
  Json event = read_events(folder / "log").events.at(0);
  EXPECT_TRUE(event["loss"].is_null());
  EXPECT_GT(event["wall_s"].get<double>(), 1.6e9);
  EXPECT_TRUE(event["mono_s"].is_number());
}

TEST(EventLog, DoesNotInterleaveLinesOfThreadsAndProcesses) {
  TemporaryFolder folder;
  std::string path = folder / "log";
  constexpr int kLines = 300;
  auto write_lines = [&path](int who) {
    EventLog log(path);
    for (int i = 0; i < kLines; ++i) log.append({{"who", who}, {"i", i}, {"pad", std::string(who * 50 + 10, 'p')}});
  };
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    write_lines(0);
    _exit(0);
  }
  std::thread one(write_lines, 1), two(write_lines, 2);
  one.join();
  two.join();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  std::vector<int> next(3, 0);
  for (const Json& event : read_events(path).events) EXPECT_EQ(event["i"], next[event["who"].get<size_t>()]++);
  EXPECT_EQ(next, (std::vector<int>{kLines, kLines, kLines}));
}

// A file size limit simulates a full disk. The test runs in a child process, because a lowered limit cannot be raised
// again.
TEST(EventLog, LosesOnlyWholeLinesOnAFullDisk) {
  TemporaryFolder folder;
  std::string path = folder / "log";
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::string text = message_of([&] {
      EventLog log(path);
      for (int i = 0; i < 100; ++i) log.append({{"i", i}, {"pad", "0123456789"}});
    });
    bool named = text.find(path) != std::string::npos && text.find("1 line(s)") != std::string::npos;
    _exit(named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EventBatch batch = read_events(path);
  EXPECT_FALSE(batch.torn);
  EXPECT_GT(batch.events.size(), 10u);
}

}  // namespace
}  // namespace esp::obs

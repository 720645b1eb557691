#include "esp/obs/flight_recorder.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/obs/flight_log.h"
#include "esp/obs/temporary_folder.h"

namespace esp::obs {
namespace {

FlightEvent collective(FlightState state, uint64_t sequence, std::string_view op = "all_reduce") {
  return {.kind = FlightKind::collective, .state = state, .text = op, .group = 7, .sequence = sequence, .bytes = 4096};
}

FlightLog log_of(FlightRecorder& recorder) {
  return parse_flight_log(recorder.snapshot(), "snapshot");
}

TEST(FlightRecorder, UsesOneMebibyteAndReturnsRecords) {
  FlightRecorder recorder({.rank = 2, .world = 4});
  EXPECT_EQ(recorder.bytes(), (size_t{1} << 20) + 4096);
  recorder.record({.kind = FlightKind::send,
                   .state = FlightState::failed,
                   .text = "reduce_scatter!?#tail",
                   .group = ~0ull,
                   .sequence = 5,
                   .bytes = 1ull << 40,
                   .peer = 3,
                   .detail = 65535});
  FlightLog log = log_of(recorder);
  EXPECT_EQ(log.rank, 2);
  EXPECT_EQ(log.world, 4);
  EXPECT_EQ(log.pid, getpid());
  ASSERT_EQ(log.records.size(), 1u);
  const FlightRecord& record = log.records[0];
  EXPECT_EQ(record.kind, FlightKind::send);
  EXPECT_EQ(record.state, FlightState::failed);
  EXPECT_EQ(record.text, "reduce_scatter!?");  // 16 characters
  EXPECT_EQ(record.group, ~0ull);
  EXPECT_EQ(record.sequence, 5u);
  EXPECT_EQ(record.bytes, 1ull << 40);
  EXPECT_EQ(record.peer, 3);
  EXPECT_EQ(record.detail, 65535);
}

TEST(FlightRecorder, KeepsTheLastRecordsOfALongRun) {
  FlightRecorder recorder({.capacity = 100});  // the capacity is rounded up to 128
  for (uint64_t i = 0; i < 1000; ++i) recorder.record(collective(FlightState::ended, i));
  FlightLog log = log_of(recorder);
  EXPECT_EQ(log.written, 1000u);
  ASSERT_EQ(log.records.size(), 128u);
  for (uint64_t i = 0; i < 128; ++i) EXPECT_EQ(log.records[i].sequence, 872 + i);
  EXPECT_EQ(log.skipped, 0u);
}

TEST(FlightRecorder, UsesTheMonotonicClock) {
  const int64_t second = 1'000'000'000, before = now_ns();  // tolerance of one second, because the machine may be busy
  FlightRecorder recorder({.capacity = 1 << 12});
  for (uint64_t i = 0; i < 4000; ++i) recorder.record(collective(FlightState::noted, i));
  int64_t last = before - second;
  for (const FlightRecord& record : log_of(recorder).records) {
    EXPECT_GE(record.mono_ns, last);
    last = record.mono_ns;
  }
  EXPECT_LE(last, now_ns() + second);
}

TEST(FlightRecorder, ReadersSeeOnlyWholeRecordsOfManyWriters) {
  FlightRecorder recorder({.capacity = 1 << 15});
  constexpr uint64_t kEach = 5000;
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t)
    writers.emplace_back([&recorder, t] {
      for (uint64_t i = 0; i < kEach; ++i)
        recorder.record({.text = "w", .group = static_cast<uint64_t>(t), .sequence = i, .bytes = i * 3, .peer = t});
    });
  for (int i = 0; i < 5; ++i)
    for (const FlightRecord& record : log_of(recorder).records) ASSERT_EQ(record.bytes, record.sequence * 3);
  for (std::thread& writer : writers) writer.join();
  FlightLog log = log_of(recorder);
  EXPECT_EQ(log.skipped, 0u);
  std::vector<uint64_t> next(4, 0);
  for (const FlightRecord& record : log.records) {
    EXPECT_EQ(record.sequence, next[record.group]++);
    EXPECT_EQ(record.peer, static_cast<int>(record.group));
  }
  EXPECT_EQ(next, std::vector<uint64_t>(4, kEach));
}

TEST(FlightRecorder, KeepsItsFileAfterSigkill) {
  TemporaryFolder folder;
  std::string path = folder / "rank-1.flight";
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FlightRecorder recorder({.capacity = 1024, .path = path, .rank = 1, .world = 2});
    recorder.record({.kind = FlightKind::connect, .state = FlightState::ended, .text = "tcp", .peer = 0});
    recorder.record(collective(FlightState::begun, 41, "all_gather"));
    [[maybe_unused]] auto written = write(ready[1], "x", 1);
    // The parent kills this process, most likely while it writes a record. The loop ends after a minute at the latest.
    for (Deadline end = Deadline::after_ms(60'000); !end.passed();)
      for (int i = 0; i < 100; ++i) recorder.record({.kind = FlightKind::step, .text = "busy", .bytes = 77});
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  close(ready[0]);
  close(ready[1]);

  FlightLog log = read_flight_log(path);
  EXPECT_EQ(log.rank, 1);
  EXPECT_EQ(log.pid, child);
  EXPECT_GE(log.written, 2u);
  EXPECT_LE(log.skipped, 1u);  // at most the record that was being written when the process died
  EXPECT_GE(log.records.size() + 1, std::min<uint64_t>(log.written, 1024));
  for (size_t i = 1; i < log.records.size(); ++i) EXPECT_GT(log.records[i].number, log.records[i - 1].number);
  if (log.written <= 1024) {
    auto open = unfinished(log);
    ASSERT_FALSE(open.empty());
    EXPECT_EQ(describe(open[0]), "collective all_gather #41 of group 7, 4096 bytes: begun");
  }
}

TEST(FlightRecorder, ReplacesAnOldFileInsteadOfWritingIntoIt) {
  TemporaryFolder folder;
  FlightRecorder old({.capacity = 16, .path = folder / "f", .rank = 1});
  old.record(collective(FlightState::ended, 1));
  FlightRecorder fresh({.capacity = 16, .path = folder / "f", .rank = 2});
  old.record(collective(FlightState::ended, 2));  // the old recorder's mapping is still valid
  FlightLog log = read_flight_log(folder / "f");
  EXPECT_EQ(log.rank, 2);
  EXPECT_TRUE(log.records.empty());
  EXPECT_THROW(FlightRecorder({.path = folder / "missing/f"}), IoError);
}

TEST(FlightLog, ListsUnfinishedOperations) {
  FlightRecorder recorder({.capacity = 64});
  recorder.record(collective(FlightState::begun, 1));
  recorder.record(collective(FlightState::ended, 1));
  recorder.record(collective(FlightState::begun, 2));
  recorder.record(collective(FlightState::failed, 2));
  recorder.record(collective(FlightState::begun, 3));
  recorder.record({.kind = FlightKind::recv, .state = FlightState::begun, .group = 7, .sequence = 3, .peer = 1});
  auto open = unfinished(log_of(recorder));
  ASSERT_EQ(open.size(), 2u);
  EXPECT_EQ(open[0].sequence, 3u);
  EXPECT_EQ(open[1].peer, 1);
}

TEST(FlightLog, InterpolatesTimesBetweenAnchors) {
  FlightRecorder recorder({.capacity = 16});
  recorder.record(collective(FlightState::ended, 1));
  std::string bytes = recorder.snapshot();
  auto put = [&](size_t offset, uint64_t word) { std::memcpy(bytes.data() + offset, &word, 8); };
  put(offsetof(FlightHeader, first), 1000);  // an anchor: ticks, then nanoseconds
  put(offsetof(FlightHeader, first) + 8, 5000);
  put(offsetof(FlightHeader, num_anchors), 3);
  put(offsetof(FlightHeader, latest) + 16, 3000);
  put(offsetof(FlightHeader, latest) + 24, 6000);
  put(offsetof(FlightHeader, wall_ns), 105000);
  put(4096 + 8, 2000);
  FlightLog log = parse_flight_log(bytes, "x");
  EXPECT_EQ(log.records.at(0).mono_ns, 5500);
  EXPECT_EQ(log.wall_minus_mono_ns, 100000);
}

TEST(FlightLog, MergesRanksByTheirClocks) {
  FlightRecorder zero({.capacity = 16, .rank = 0}), one({.capacity = 16, .rank = 1});
  one.record(collective(FlightState::begun, 1, "barrier"));
  zero.record(collective(FlightState::begun, 2, "broadcast"));
  FlightLog logs[] = {log_of(zero), log_of(one)};
  logs[0].wall_minus_mono_ns = logs[1].wall_minus_mono_ns = 0;
  logs[0].records[0].mono_ns = 2000;
  logs[1].records[0].mono_ns = 1000;
  std::string text = merged_timeline(logs);
  EXPECT_LT(text.find("barrier"), text.find("broadcast")) << text;
  EXPECT_NE(text.find("+0.000001000 s  rank 0   collective broadcast"), std::string::npos) << text;
  const int64_t offsets[] = {0, 5000};
  text = merged_timeline(logs, offsets);
  EXPECT_GT(text.find("barrier"), text.find("broadcast")) << text;
  EXPECT_NE(text.find("rank 1 wrote 1 records, 0 unreadable; unfinished:\n  collective barrier"), std::string::npos)
      << text;
  Json json = to_json(logs[1]);
  EXPECT_EQ(json["records"][0]["text"], "barrier");
  EXPECT_EQ(json["records"][0]["state"], "begun");
}

TEST(FlightLog, ReportsTheLastCollectiveOfEveryRankAndTruncatesTheTimeline) {
  FlightRecorder zero({.capacity = 16, .rank = 0}), one({.capacity = 16, .rank = 1});
  for (FlightRecorder* each : {&zero, &one}) {
    each->record(collective(FlightState::begun, 6));
    each->record(collective(FlightState::ended, 6));
  }
  FlightLog logs[] = {log_of(zero), log_of(one)};
  EXPECT_EQ(last_collectives(logs), "");
  zero.record(collective(FlightState::begun, 7));
  logs[0] = log_of(zero);
  const std::string places = last_collectives(logs);
  EXPECT_NE(places.find("rank 1 had ended all_reduce #6"), std::string::npos) << places;
  EXPECT_NE(places.find("rank 0 in all_reduce #7"), std::string::npos) << places;
  one.record(collective(FlightState::begun, 7));
  one.record(collective(FlightState::failed, 7));
  logs[1] = log_of(one);
  EXPECT_NE(last_collectives(logs).find("rank 1 failed in all_reduce #7"), std::string::npos) << last_collectives(logs);
  const std::string last = merged_timeline(std::span(logs).first(1), {}, 2);
  EXPECT_TRUE(last.starts_with("… 1 earlier records not shown\n")) << last;
}

TEST(FlightLog, RejectsOtherFilesAndReadsATruncatedOne) {
  FlightRecorder recorder({.capacity = 16});
  for (uint64_t i = 0; i < 10; ++i) recorder.record(collective(FlightState::ended, i));
  std::string bytes = recorder.snapshot();
  EXPECT_THROW(parse_flight_log("", "x"), IoError);
  EXPECT_THROW(parse_flight_log(bytes.substr(0, 4095), "x"), IoError);
  EXPECT_THROW(parse_flight_log(std::string(5000, 'x'), "x"), IoError);
  FlightLog cut = parse_flight_log(std::string_view(bytes).substr(0, 4096 + 3 * 64 + 10), "x");
  EXPECT_EQ(cut.records.size(), 3u);
  EXPECT_EQ(cut.skipped, 7u);
}

TEST(FlightLog, SkipsOrRejectsInvalidBytes) {
  FlightRecorder recorder({.capacity = 16});
  for (uint64_t i = 0; i < 10; ++i) recorder.record(collective(FlightState::ended, i));
  const std::string good = recorder.snapshot();
  auto with = [&](size_t offset, uint64_t word) {
    std::string bytes = good;
    std::memcpy(bytes.data() + offset, &word, 8);
    return bytes;
  };
  const size_t record = 4096 + 2 * 64;
  EXPECT_THROW(parse_flight_log(with(offsetof(FlightHeader, capacity), 3), "x"), IoError);
  EXPECT_THROW(parse_flight_log(with(offsetof(FlightHeader, capacity), 1ull << 40), "x"), IoError);
  EXPECT_THROW(parse_flight_log(with(offsetof(FlightHeader, first) + 8, ~0ull), "x"), IoError);
  EXPECT_EQ(parse_flight_log(with(offsetof(FlightHeader, next), ~0ull), "x").records.size(), 10u);
  EXPECT_EQ(parse_flight_log(with(record, 99), "x").skipped, 1u);          // a number that belongs to another slot
  EXPECT_EQ(parse_flight_log(with(record + 40, ~0ull), "x").skipped, 1u);  // an unknown kind of record
  FlightLog log = parse_flight_log(with(record + 48, 0x1b5b'324a'0a61'ff61ull), "x");  // text with escape sequences
  EXPECT_EQ(log.records[2].text, "a?a?J2[?ce");
  (void)merged_timeline(std::span(&log, 1));
}

}  // namespace
}  // namespace esp::obs

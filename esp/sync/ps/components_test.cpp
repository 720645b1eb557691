// Tests of the parts that use no threads: layout, messages, application orders, combining, push queue.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/ps/application_order.h"
#include "esp/sync/ps/combine.h"
#include "esp/sync/ps/layout.h"
#include "esp/sync/ps/message.h"
#include "esp/sync/ps/push_queue.h"

namespace esp::sync {
namespace {

nn::ParameterList list_of(const std::vector<std::vector<int64_t>>& units) {
  nn::ParameterList list;
  for (size_t u = 0; u < units.size(); ++u) {
    list.begin_unit("unit" + std::to_string(u));
    for (size_t p = 0; p < units[u].size(); ++p)
      list.add("p" + std::to_string(u) + "." + std::to_string(p), {units[u][p]}, nn::Init::zeros(), false);
  }
  return list;
}

TEST(ServerLayout, CoversEveryElementOnceInPartitionsOfOneUnitAndOneServer) {
  const nn::ParameterList list = list_of({{10, 33}, {1000}, {7, 1, 1}});
  for (const int servers : {1, 2, 3, 5}) {
    PsOptions options;
    options.servers = servers;
    options.partition_mb = 100.0 * 4 / (1 << 20);
    const ServerLayout layout = make_server_layout(list, 5, options, DType::f32);
    int64_t at = 0;
    for (const Partition& p : layout.partitions) {
      EXPECT_EQ(p.begin, at);
      EXPECT_LE(p.count(), 100);
      const auto& unit = list.units()[static_cast<size_t>(p.unit)];
      EXPECT_GE(p.begin, unit.first);
      EXPECT_LE(p.end, unit.first + unit.count);
      const comm::Chunk shard = layout.shard(p.server);
      EXPECT_GE(p.begin, static_cast<int64_t>(shard.offset));
      EXPECT_LE(p.end, static_cast<int64_t>(shard.offset + shard.count));
      at = p.end;
    }
    EXPECT_EQ(at, list.count());
  }
}

TEST(ServerLayout, DedicatedServersAreTheLastRanks) {
  const nn::ParameterList list = list_of({{10}});
  PsOptions options;
  options.server_ranks = "dedicated";
  options.servers = 2;
  const ServerLayout layout = make_server_layout(list, 5, options, DType::f32);
  EXPECT_EQ(layout.num_workers, 3);
  EXPECT_TRUE(layout.works(2));
  EXPECT_FALSE(layout.works(3));
  EXPECT_EQ(layout.rank_of(1), 4);
  EXPECT_EQ(layout.server_at(2), -1);
  EXPECT_EQ(layout.server_at(3), 0);
}

TEST(ServerLayout, RejectsInvalidDivisions) {
  const auto refused = [](auto change) {
    PsOptions options;
    change(options);
    EXPECT_THROW(num_workers_of(4, options), UsageError);
  };
  refused([](PsOptions& o) { o.servers = 5; });
  refused([](PsOptions& o) { o.server_ranks = "dedicated"; });
  refused([](PsOptions& o) { o.server_ranks = "dedicated", o.servers = 4; });
  refused([](PsOptions& o) { o.mode = "sometimes"; });
  refused([](PsOptions& o) { o.mode = "async", o.update = "worker"; });
  refused([](PsOptions& o) { o.mode = "async", o.aggregate = "median"; });
  refused([](PsOptions& o) { o.aggregate = "trimmed_mean", o.trim = 2; });
  refused([](PsOptions& o) { o.staleness = -1; });
  refused([](PsOptions& o) { o.record = "there"; });
  refused([](PsOptions& o) { o.credit = 0; });
  refused([](PsOptions& o) { o.exchange = "collectives", o.mode = "async"; });
  refused([](PsOptions& o) { o.update = "worker", o.cross_barrier = true; });
}

TEST(PsMessage, RoundTrips) {
  Message m{MessageKind::push};
  m.partition = 4'000'000'000u;
  m.step = int64_t{1} << 60;
  m.stop = 77;
  m.lr = -0.0;
  m.factor = std::numeric_limits<double>::infinity();
  m.bytes = uint64_t{5} << 40;
  EXPECT_EQ(decode_message(encode(m)), m);
}

TEST(PsMessage, RejectsInvalidHeaders) {
  const MessageBytes good = encode(Message{MessageKind::apply});
  for (const size_t at : {0, 3, 4, 5, 6, 7, 12, 15}) {
    MessageBytes bad = good;
    bad[at] ^= std::byte{0x80};
    EXPECT_THROW(decode_message(bad), CommError) << at;
  }
  MessageBytes below = good;
  below[23] = std::byte{0xff};  // makes the step negative
  EXPECT_THROW(decode_message(below), CommError);
  EXPECT_THROW(decode_message({good.data(), kMessageBytes - 1}), CommError);
  EXPECT_THROW(decode_message(encode(Message{MessageKind::push})), CommError);  // a push without payload is invalid
  Message pull{MessageKind::pull};
  pull.bytes = 8;
  EXPECT_THROW(decode_message(encode(pull)), CommError);
}

TEST(PsOrder, RoundTripsThroughAFile) {
  const obs::TemporaryFolder folder;
  const std::vector<OrderEvent> events = {{OrderEvent::Kind::push, 3, 0}, {OrderEvent::Kind::pull, 3, 1}};
  save_order(folder / "orders", 2, events);
  EXPECT_EQ(load_order(folder / "orders", 2), events);
  EXPECT_THROW(load_order(folder / "orders", 0), IoError);
  for (const char* bad :
       {"push 1", "push 1 2 3", "pusH 1 2", "push -1 2", "push 1 2\n\n", "pull 1 99999999999999999999"})
    EXPECT_THROW(parse_order(bad, "f"), UsageError) << bad;
}

TEST(Combine, MedianAndTrimmedMeanTolerateOneFaultyWorker) {
  const int64_t count = 3000;
  std::vector<std::vector<float>> pushes(5, std::vector<float>(count));
  for (size_t w = 0; w < 5; ++w)
    for (int64_t i = 0; i < count; ++i)
      pushes[w][static_cast<size_t>(i)] =
          1 + 0.01f * static_cast<float>(random_bits(3, w, static_cast<uint64_t>(i)) % 100);
  for (auto& x : pushes[2]) x *= 1e6f;
  pushes[2][0] = std::nanf("");
  std::vector<const void*> all;
  for (const auto& push : pushes) all.push_back(push.data());
  std::vector<float> out(count);
  for (const Aggregate how : {Aggregate::median, Aggregate::trimmed_mean}) {
    combine(out.data(), all, count, DType::f32, how, 1);
    for (const float x : out) EXPECT_TRUE(x >= 5 && x <= 10) << x;
  }
  combine(out.data(), all, count, DType::f32, Aggregate::sum, 0);
  EXPECT_GT(out[1], 1e5f);
}

TEST(Combine, MedianOfAnEvenNumberAveragesTheMiddleTwo) {
  const double a = 1, b = 100, c = 3, d = 5;
  double out = 0;
  const void* all[] = {&a, &b, &c, &d};
  combine(&out, all, 1, DType::f64, Aggregate::median, 0);
  EXPECT_DOUBLE_EQ(out, 4 * 4.0);
  combine(&out, all, 1, DType::f64, Aggregate::trimmed_mean, 0);
  EXPECT_DOUBLE_EQ(out, 109);
}

TEST(PushQueue, SelectsTheMostUrgentPartitionWithinTheCredit) {
  PushQueue queue(true, 10);
  queue.add({7, 2, 6});
  queue.add({3, 1, 6});
  queue.add({2, 1, 4});
  EXPECT_EQ(queue.next()->partition, 2);
  EXPECT_EQ(queue.next()->partition, 3);
  EXPECT_FALSE(queue.next());  // no credit is left
  queue.acknowledged(4);
  EXPECT_FALSE(queue.next());
  queue.acknowledged(6);
  EXPECT_EQ(queue.next()->partition, 7);
}

TEST(PushQueue, FifoKeepsTheOrderAndSendsOversizedPartitionsAlone) {
  PushQueue queue(false, 10);
  queue.add({7, 2, 60});
  queue.add({3, 1, 6});
  EXPECT_EQ(queue.next()->partition, 7);
  EXPECT_FALSE(queue.next());
  queue.acknowledged(60);
  EXPECT_EQ(queue.next()->partition, 3);
}

}  // namespace
}  // namespace esp::sync

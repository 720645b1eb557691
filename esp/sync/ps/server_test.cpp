// Tests a server without threads and transport: the messages it sends in answer to messages in any order.
#include "esp/sync/ps/server.h"

#include <gtest/gtest.h>

#include <cstring>

#include "esp/base/error.h"
#include "esp/device/pool.h"

namespace esp::sync {
namespace {

struct SentMessage {
  int worker;
  Message message;
  std::vector<float> payload;
};

struct ServerFixture {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};
  nn::ParameterList list;
  PsOptions options;
  std::unique_ptr<ServerLayout> layout;
  std::unique_ptr<ShardServer> server;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::vector<SentMessage> sent;

  explicit ServerFixture(PsOptions with, int workers = 3) : options(std::move(with)) {
    list.begin_unit("one");
    list.add("a", {5}, nn::Init::zeros(), false);
    list.begin_unit("two");
    list.add("b", {6}, nn::Init::zeros(), false);
    options.servers = 1;
    options.partition_mb = 4.0 * 4 / (1 << 20);
    layout = std::make_unique<ServerLayout>(make_server_layout(list, workers, options, DType::f32));
    server = std::make_unique<ShardServer>(
        *layout, 0, context, ShardServer::Options{options, DType::f32, DType::f32},
        [this](int worker, const Message& message, const void* payload, int) {
          const auto* at = static_cast<const float*>(payload);
          const size_t count = message.kind == MessageKind::values ? message.bytes / sizeof(float) : 0;
          sent.push_back({worker, message, std::vector<float>(at, at + count)});
        });
    if (options.update == "server") {
      std::vector<optim::OptimizerShard> owned = {
          {{0, 0, 5}, server->values().slice(0, 5), server->grads().slice(0, 5)},
          {{1, 0, 6}, server->values().slice(5, 11), server->grads().slice(5, 11)}};
      optimizer = optim::make_optimizer({.name = "sgd", .momentum = 0}, list, context, std::move(owned));
      server->set_optimizer(optimizer.get());
    }
  }

  void push(int worker, int partition, int64_t step, float value) {
    const Partition& p = layout->partitions[static_cast<size_t>(partition)];
    Message m{MessageKind::push};
    m.partition = static_cast<uint32_t>(partition);
    m.step = step;
    m.bytes = static_cast<uint64_t>(p.count()) * sizeof(float);
    auto* to = reinterpret_cast<float*>(server->receive_buffer(worker, m));
    std::fill(to, to + p.count(), value);
    server->arrived(worker, m);
  }
  void push_all(int worker, int64_t step, float value) {
    for (int p = static_cast<int>(layout->partitions.size()) - 1; p >= 0; --p) push(worker, p, step, value);
  }
  void deliver(int worker, MessageKind kind, int64_t step, uint8_t flags = 0) {
    Message m{kind};
    m.step = step;
    m.lr = 3;
    m.flags = flags;
    server->arrived(worker, m);
  }
  void step_of(int worker, int64_t step, float value) {
    push_all(worker, step, value);
    deliver(worker, MessageKind::apply, step);
  }
  int num_values_to(int worker) const {
    int num = 0;
    for (const SentMessage& one : sent) num += one.worker == worker && one.message.kind == MessageKind::values;
    return num;
  }
  float value(int64_t at = 0) const { return server->values().as<float>()[at]; }
};

PsOptions mode(const std::string& name, int64_t staleness = 1) {
  PsOptions options;
  options.mode = name;
  options.staleness = staleness;
  return options;
}

TEST(PsServer, SumsInWorkerOrderForAnyArrivalOrder) {
  ServerFixture served(mode("sync"));
  // Arrival order is 2, 1, 0. Added in worker order, the large values cancel and the 1 remains. Added in arrival order,
  // the 1 would be lost.
  served.push_all(2, 0, 1);
  served.push_all(1, 0, -1e8f);
  EXPECT_FALSE(served.server->aggregated());
  served.push_all(0, 0, 1e8f);
  EXPECT_TRUE(served.server->aggregated());
  EXPECT_EQ(served.server->grads().as<float>()[0], (1e8f + -1e8f) + 1);
  ServerFixture other(mode("sync"));
  other.push_all(0, 0, 1);
  other.push_all(1, 0, 1e8f);
  other.push_all(2, 0, -1e8f);
  EXPECT_EQ(other.server->grads().as<float>()[0], (1 + 1e8f) + -1e8f);
}

TEST(PsServer, SendsValuesByPriorityAfterAllPushesArrive) {
  ServerFixture served(mode("sync"));
  for (int w = 0; w < 3; ++w) served.push_all(w, 0, 1);
  EXPECT_EQ(served.num_values_to(1), 0);
  served.server->publish();
  std::vector<uint32_t> order;
  for (const SentMessage& one : served.sent)
    if (one.worker == 1 && one.message.kind == MessageKind::values) order.push_back(one.message.partition);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(served.server->step(), 1);
}

TEST(PsServer, SendsEachSumWhenCompleteIfWorkersUpdateWeights) {
  PsOptions options = mode("sync");
  options.update = "worker";
  ServerFixture served(options);
  for (int w = 0; w < 3; ++w) served.push(w, 3, 0, static_cast<float>(w + 1));
  for (int w = 0; w < 3; ++w) EXPECT_EQ(served.num_values_to(w), 1);
  EXPECT_EQ(served.sent.back().payload, (std::vector<float>(2, 6)));
}

TEST(PsServer, AppliesEachAsynchronousPushAtLrOverNumWorkers) {
  ServerFixture served(mode("async"));
  served.step_of(1, 0, 2);
  EXPECT_FLOAT_EQ(served.value(), -2);  // the weight changes by −lr/W · gradient = −3/3 · 2
  served.step_of(0, 0, 1);
  EXPECT_FLOAT_EQ(served.value(), -3);
  EXPECT_EQ(served.server->version(), 2);
  EXPECT_EQ(served.server->staleness(), (std::map<int64_t, int64_t>{{0, 1}, {1, 1}}));
}

TEST(PsServer, AnswersAPullWithAConsistentVersion) {
  ServerFixture served(mode("async"));
  served.step_of(0, 0, 1);
  served.deliver(0, MessageKind::pull, 1);
  served.step_of(1, 0, 5);  // this step comes after the answer was created, so the answer must not contain it
  for (const SentMessage& one : served.sent)
    for (const float x : one.payload) EXPECT_FLOAT_EQ(x, -1);
}

TEST(PsServer, DelaysAPullUntilTheWorkersPushIsApplied) {
  ServerFixture served(mode("async"));
  served.deliver(0, MessageKind::pull, 1);
  EXPECT_EQ(served.num_values_to(0), 0);
  served.step_of(0, 0, 1);
  EXPECT_EQ(served.num_values_to(0), 4);
}

TEST(PsServer, DelaysApplyUntilTheLastPartitionArrives) {
  ServerFixture served(mode("async"));
  for (int p = 1; p < 4; ++p) served.push(0, p, 0, 1);
  served.deliver(0, MessageKind::apply, 0);
  EXPECT_EQ(served.server->version(), 0);
  served.push(0, 0, 0, 1);
  EXPECT_EQ(served.server->version(), 1);
}

TEST(PsServer, StaleSynchronousDelaysWorkersBeyondTheBound) {
  ServerFixture served(mode("ssp", 2));
  for (int64_t c = 0; c < 3; ++c) {
    served.step_of(0, c, 1);
    served.deliver(0, MessageKind::pull, c + 1);
  }
  EXPECT_EQ(served.num_values_to(0), 2 * 4);  // no answer: clock 3 is 3 ahead of workers at clock 0
  served.step_of(1, 0, 1);
  EXPECT_EQ(served.num_values_to(0), 2 * 4);
  served.step_of(2, 0, 1);
  EXPECT_EQ(served.num_values_to(0), 3 * 4);
  EXPECT_EQ(served.server->largest_gap(), 2);
}

TEST(PsServer, SkippedPushAdvancesOnlyTheClock) {
  ServerFixture served(mode("async"));
  served.push_all(0, 0, 7);
  served.deliver(0, MessageKind::apply, 0, Message::kSkip);
  EXPECT_EQ(served.value(), 0);
  EXPECT_EQ(served.server->version(), 0);
  served.step_of(0, 1, 1);
  EXPECT_FLOAT_EQ(served.value(), -1);
}

TEST(PsServer, AnnouncesTheStopStepBeforeAnyWorkerReachesIt) {
  ServerFixture served(mode("async"));
  served.step_of(1, 0, 1);
  served.deliver(1, MessageKind::pull, 1);
  served.step_of(0, 0, 1);
  served.deliver(0, MessageKind::pull, 1, Message::kStopRequested);
  EXPECT_EQ(served.server->stop(), 3);  // a worker may be computing clock 1; it gets the stop with clock 2
  EXPECT_EQ(served.sent.back().message.stop, 3);
}

TEST(PsServer, RejectsInvalidMessages) {
  ServerFixture served(mode("sync"));
  Message m{MessageKind::push};
  m.bytes = 12;
  EXPECT_THROW(served.server->receive_buffer(0, m), CommError);  // wrong size: the partition has 4 elements, 16 bytes
  m.bytes = 16;
  m.step = 1;
  EXPECT_THROW(served.server->receive_buffer(0, m), CommError);
  m.step = 0;
  m.partition = 9;
  EXPECT_THROW(served.server->receive_buffer(0, m), CommError);
  served.push(0, 0, 0, 1);
  m.partition = 0;
  EXPECT_THROW(served.server->receive_buffer(0, m), CommError);  // a second push of the same partition
  EXPECT_THROW(served.deliver(0, MessageKind::pull, 1), CommError);
  EXPECT_THROW(served.deliver(0, MessageKind::values, 1), CommError);
}

}  // namespace
}  // namespace esp::sync

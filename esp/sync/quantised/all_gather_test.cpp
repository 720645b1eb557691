#include "esp/sync/quantised/all_gather.h"

#include <gtest/gtest.h>

#include <future>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/quantised/testing.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

double weight(size_t i) {
  return 4 * random_unit(3, 1, i) - 2;
}

// The expected result on every rank: each chunk quantised separately.
Tensor expected(const GridRank& rank, size_t count, DType dtype, const Encoding& encoding) {
  Tensor whole = rank.filled(count, dtype, weight);
  for (int k = 0; k < rank.nodes.size(); ++k) {
    const comm::Chunk chunk = comm::chunk_of(count, rank.nodes.size(), k);
    round_trip(whole, chunk.offset, chunk.count, encoding);
  }
  return whole;
}

Tensor own_chunk(const GridRank& rank, size_t count, DType dtype) {
  const comm::Chunk own = comm::chunk_of(count, rank.nodes.size(), rank.rank());
  return rank.filled(own.count, dtype, [&](size_t i) { return weight(own.offset + i); });
}

uint64_t encoded(const GridRank& rank, size_t count, DType dtype, const Encoding& encoding, int k) {
  return formula_bytes(comm::chunk_of(count, rank.nodes.size(), k).count, dtype, encoding);
}

TEST(QuantisedGather, IsBitIdenticalOnEveryRankAndSendsThePredictedBytes) {
  run_on_every_grid([](GridRank& rank) {
    const NodeGrid& nodes = rank.nodes;
    uint64_t inter_node = 0, intra_node = 0;  // expected bytes of all calls so far
    for (DType dtype : {DType::f32, DType::bf16})
      for (int bits : {0, 8, 4})
        for (size_t count : {1u, 5u, 1000u, 1024u, 1027u}) {
          const Encoding encoding{bits, 64};
          const std::string where = fmt::format("{}x{} rank {}: {} {}, {} bits", nodes.num_nodes(),
                                                nodes.ranks_per_node(), rank.rank(), count, name_of(dtype), bits);
          QuantisedGather gather(nodes, rank.context, static_cast<int64_t>(count), dtype, encoding);
          Tensor whole = rank.empty(count, dtype);
          gather.start(own_chunk(rank, count, dtype));
          gather.finish(whole, one_minute());
          EXPECT_TRUE(same_bits(whole, expected(rank, count, dtype, encoding))) << where;
          EXPECT_EQ(rank.buffers_in_use(), 0u) << where;

          const auto peers = static_cast<uint64_t>(nodes.num_nodes() - 1);
          inter_node += peers * encoded(rank, count, dtype, encoding, rank.rank());
          for (int node = 0; node < nodes.num_nodes(); ++node)
            intra_node += static_cast<uint64_t>(nodes.ranks_per_node() - 1) *
                          encoded(rank, count, dtype, encoding, nodes.rank_of(node, nodes.local()));
          ASSERT_EQ(bytes_sent(*nodes.inter_node, comm::Op::all_to_all_v), inter_node) << where;
          ASSERT_EQ(bytes_sent(*nodes.intra_node, comm::Op::all_to_all_v), intra_node) << where;
        }
  });
}

TEST(QuantisedGather, SendsHalfTheBytesOf16BitValuesPlusScales) {
  run_on_nodes(2, 2, [](GridRank& rank) {
    constexpr size_t kCount = 4 * 6000;
    QuantisedGather gather(rank.nodes, rank.context, kCount, DType::bf16);
    Tensor whole = rank.empty(kCount, DType::bf16);
    gather.start(own_chunk(rank, kCount, DType::bf16));
    gather.finish(whole, one_minute());
    // 6000 values of one byte and 3 fp32 scales: ⌈6000/2048⌉ = 3 blocks
    EXPECT_EQ(bytes_sent(*rank.nodes.inter_node, comm::Op::all_to_all_v), 6000u + 4 * 3);
    EXPECT_EQ(bytes_sent(*rank.nodes.intra_node, comm::Op::all_to_all_v), 2 * (6000u + 4 * 3));
  });
}

TEST(QuantisedGather, LeavesTheOptimizersWeightsUnchanged) {
  run_on_nodes(2, 2, [](GridRank& rank) {
    constexpr size_t kCount = 999;
    QuantisedGather gather(rank.nodes, rank.context, kCount, DType::bf16, {8, 100});
    const Tensor master = own_chunk(rank, kCount, DType::f32);
    const Tensor before = tensor::copy_of(rank.context, master, device::MemoryCategory::other);
    Tensor first = rank.empty(kCount, DType::bf16), second = rank.empty(kCount, DType::bf16);
    gather.start(master);
    gather.finish(first, one_minute());
    gather.start(master);
    gather.finish(second, one_minute());
    EXPECT_TRUE(same_bits(master, before));
    EXPECT_TRUE(same_bits(first, second));  // a second gather gives the same bits: errors do not accumulate
    // Values are quantised directly from fp32 and rounded to the storage type once.
    const Tensor whole = tensor::cast_to(rank.context, expected(rank, kCount, DType::f32, {8, 100}), DType::bf16,
                                         device::MemoryCategory::other);
    EXPECT_TRUE(same_bits(first, whole));
  });
}

TEST(QuantisedGather, SupportsSeveralUnitsInFlight) {
  for (const char* transport : {"inproc", "auto"})
    run_on_nodes(
        2, 3,
        [](GridRank& rank) {
          const size_t counts[] = {700, 31, 5000};
          std::vector<std::unique_ptr<QuantisedGather>> gathers;
          std::vector<Tensor> wholes;
          for (size_t count : counts) {
            gathers.push_back(
                std::make_unique<QuantisedGather>(rank.nodes, rank.context, static_cast<int64_t>(count), DType::f16));
            wholes.push_back(rank.empty(count, DType::f16));
          }
          for (int round = 0; round < 3; ++round) {
            for (size_t i = 0; i < 3; ++i) {
              Tensor chunk = own_chunk(rank, counts[i], DType::f16);
              gathers[i]->start(chunk);
              std::memset(chunk.data(), 0xff, chunk.bytes());  // allowed: the chunk may be overwritten after `start`
            }
            gathers[1]->advance(one_minute());
            for (size_t i : {2u, 0u, 1u}) {
              EXPECT_TRUE(gathers[i]->in_flight());
              gathers[i]->finish(wholes[i], one_minute());
              EXPECT_TRUE(same_bits(wholes[i], expected(rank, counts[i], DType::f16, {})));
            }
          }
          EXPECT_EQ(rank.buffers_in_use(), 0u);
        },
        transport);
}

TEST(QuantisedGather, QuantisesValuesEvenWithASingleRank) {
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  const NodeGrid nodes = split_by_node(nullptr, 1);
  QuantisedGather gather(nodes, {{}, &pool}, 3, DType::f32, {4, 8});
  std::vector<float> values{7, 1.4f, -2.5f}, whole(3);
  gather.start(Tensor::borrow(values.data(), {3}, DType::f32));
  gather.finish(Tensor::borrow(whole.data(), {3}, DType::f32), one_minute());
  EXPECT_EQ(whole, (std::vector<float>{7, 1, -2}));
}

TEST(QuantisedGather, FailsAtOnceAfterRankFailure) {
  std::promise<void> started;
  bool failed = false;
  auto body = [&](GridRank& rank) {
    if (rank.rank() == 1) {
      started.get_future().wait_for(std::chrono::seconds(60));
      throw std::runtime_error("gone");
    }
    QuantisedGather gather(rank.nodes, rank.context, 10, DType::f32);
    gather.start(own_chunk(rank, 10, DType::f32));
    started.set_value();
    try {
      gather.finish(rank.empty(10, DType::f32), one_minute());
    } catch (const CommError&) {
      failed = true;
      throw;
    }
  };
  EXPECT_THROW(run_on_nodes(2, 1, body), std::runtime_error);
  EXPECT_TRUE(failed);
}

TEST(QuantisedGather, RejectsInvalidOptions) {
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  const NodeGrid nodes = split_by_node(nullptr, 1);
  EXPECT_THROW(QuantisedGather(nodes, {{}, &pool}, 3, DType::f32, {3, 8}), UsageError);
  EXPECT_THROW(QuantisedGather(nodes, {{}, &pool}, 3, DType::f32, {8, 0}), UsageError);
  EXPECT_THROW(split_by_node(nullptr, 2), UsageError);
}

}  // namespace
}  // namespace esp::sync

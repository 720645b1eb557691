// Tests the secondary shard, and the bytes that a step with qwZ, hpZ and qgZ sends across nodes.
#include "esp/sync/quantised/secondary_shard.h"

#include <gtest/gtest.h>

#include <atomic>

#include "esp/sync/quantised/all_gather.h"
#include "esp/sync/quantised/reduce_scatter.h"
#include "esp/sync/quantised/testing.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

double weight(size_t i) {
  return 4 * random_unit(3, 1, i) - 2;
}

uint64_t bytes_received(const comm::Communicator& members) {
  uint64_t bytes = 0;
  for (const comm::CallStats& stats : members.stats()) bytes += stats.bytes_received;
  return bytes;
}
uint64_t bytes_sent(const comm::Communicator& members) {
  uint64_t bytes = 0;
  for (const comm::CallStats& stats : members.stats()) bytes += stats.bytes_sent;
  return bytes;
}

TEST(SecondaryShard, GatherInsideTheNodeIsBitIdentical) {
  run_on_every_grid([](GridRank& rank) {
    const NodeGrid& nodes = rank.nodes;
    for (size_t count : {3u, 1000u, 1027u}) {
      QuantisedGather gather(nodes, rank.context, static_cast<int64_t>(count), DType::bf16, {8, 64});
      SecondaryShard shard(nodes, rank.context, static_cast<int64_t>(count), DType::bf16);
      const comm::Chunk own = comm::chunk_of(count, nodes.size(), rank.rank());
      Tensor whole = rank.empty(count, DType::bf16), again = rank.empty(count, DType::bf16);
      gather.start(rank.filled(own.count, DType::bf16, [&](size_t i) { return weight(own.offset + i); }));
      gather.finish(whole, one_minute());
      EXPECT_FALSE(shard.kept());
      shard.keep(whole);
      // The memory of the secondary shard is 1/G of the unit.
      const size_t share = comm::chunk_of(count, nodes.ranks_per_node(), nodes.local()).count;
      EXPECT_EQ(rank.account.use(device::MemoryCategory::parameter).current, share * 2);

      const uint64_t inter_node = bytes_sent(*nodes.inter_node), received = bytes_received(*nodes.intra_node);
      shard.gather_in_node(again, one_minute());
      EXPECT_TRUE(same_bits(again, whole));
      EXPECT_EQ(bytes_sent(*nodes.inter_node), inter_node);  // no additional bytes across nodes
      EXPECT_EQ(bytes_received(*nodes.intra_node) - received, (count - share) * 2);
    }
  });
}

TEST(SecondaryShard, ShardIsTheWholeUnitWhenTheNodeHasOneRank) {
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  const NodeGrid nodes = split_by_node(nullptr, 1);
  SecondaryShard shard(nodes, {{}, &pool}, 3, DType::f32);
  std::vector<float> values{1, 2, 3}, back(3);
  shard.keep(Tensor::borrow(values.data(), {3}, DType::f32));
  shard.gather_in_node(Tensor::borrow(back.data(), {3}, DType::f32), one_minute());
  EXPECT_EQ(back, values);
}

// Bytes that this rank sent to ranks of other nodes through the world communicator.
uint64_t sent_across(const GridRank& rank) {
  const net::Transport& transport = *dynamic_cast<comm::ScheduledCommunicator&>(rank.world_comm).transport();
  uint64_t bytes = 0;
  for (int peer = 0; peer < rank.nodes.size(); ++peer)
    if (peer / rank.nodes.ranks_per_node() != rank.nodes.node()) bytes += transport.traffic(peer).bytes_sent;
  return bytes;
}

// A step of plain ZeRO stage 3: a gather for forward, a gather for backward, and a reduce-scatter, all by rings of
// 16-bit values.
void plain_step(GridRank& rank, size_t count) {
  const comm::Chunk own = comm::chunk_of(count, rank.nodes.size(), rank.rank());
  Tensor values = rank.filled(own.count, DType::bf16, [&](size_t i) { return weight(own.offset + i); });
  Tensor whole = rank.empty(count, DType::bf16), sum = rank.empty(own.count, DType::bf16);
  comm::Call gather, scatter;
  gather.op = comm::Op::all_gather;
  gather.in = values.data();
  gather.out = whole.data();
  scatter.op = comm::Op::reduce_scatter;
  scatter.in = whole.data();
  scatter.out = sum.data();
  gather.count = scatter.count = count;
  gather.dtype = scatter.dtype = DType::bf16;
  gather.algorithm = scatter.algorithm = "ring";
  rank.world_comm.run(gather);
  rank.world_comm.run(gather);
  rank.world_comm.run(scatter);
}

void quantised_step(GridRank& rank, size_t count) {
  const comm::Chunk own = comm::chunk_of(count, rank.nodes.size(), rank.rank());
  const auto n = static_cast<int64_t>(count);
  QuantisedGather forward(rank.nodes, rank.context, n, DType::bf16);
  SecondaryShard backward(rank.nodes, rank.context, n, DType::bf16);
  QuantisedScatter gradients(rank.nodes, rank.context, n, DType::bf16);
  Tensor whole = rank.empty(count, DType::bf16), sum = rank.empty(own.count, DType::f32);
  forward.start(rank.filled(own.count, DType::bf16, [&](size_t i) { return weight(own.offset + i); }));
  forward.finish(whole, one_minute());
  backward.keep(whole);
  backward.gather_in_node(whole, one_minute());
  gradients.start(whole);
  gradients.finish(sum, one_minute());
}

TEST(ZeroPlusPlus, SendsAQuarterOfTheBytesAcrossNodes) {
  for (int num_nodes : {2, 3, 4})
    for (int ranks_per_node : {2, 3, 4}) {
      // Each chunk has two and a half quantisation blocks.
      const size_t chunk = 5 * 1024, count = chunk * static_cast<size_t>(num_nodes * ranks_per_node);
      std::vector<std::atomic<uint64_t>> plain(static_cast<size_t>(num_nodes)), quantised(plain.size());
      run_on_nodes(num_nodes, ranks_per_node, [&](GridRank& rank) {
        const auto node = static_cast<size_t>(rank.nodes.node());
        const uint64_t before = sent_across(rank);
        plain_step(rank, count);
        plain[node] += sent_across(rank) - before;
        const uint64_t later = sent_across(rank);
        quantised_step(rank, count);
        quantised[node] += bytes_sent(*rank.nodes.inter_node) + sent_across(rank) - later;
      });
      const auto size = static_cast<uint64_t>(num_nodes * ranks_per_node), nodes = static_cast<uint64_t>(num_nodes);
      for (size_t node = 0; node < plain.size(); ++node) {
        // Plain ZeRO: three collectives of Φ = `count` elements of two bytes; a ring sends (N−1)/N of them.
        EXPECT_EQ(plain[node], 3 * 2 * count * (size - 1) / size);
        // ZeRO++: one byte per element in forward, none in backward, and half a byte for gradients: 0.75Φ elements of
        // two bytes, times (M−1)/M. In addition the fp32 scales: three per chunk in forward and three for gradients.
        const uint64_t chunks = static_cast<uint64_t>(ranks_per_node) * (nodes - 1);
        EXPECT_EQ(quantised[node], count * 3 / 2 * (nodes - 1) / nodes + chunks * 2 * 3 * 4);
        EXPECT_GT(static_cast<double>(plain[node]) / static_cast<double>(quantised[node]), 3.98);
      }
    }
}

}  // namespace
}  // namespace esp::sync

#include "esp/sync/quantised/reduce_scatter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "esp/sync/quantised/testing.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

double gradient(int rank, size_t i) {
  return 2 * random_unit(11, static_cast<uint64_t>(rank), i) - 1;
}
double whole_number(int rank, size_t i) {
  return static_cast<double>(random_bits(12, static_cast<uint64_t>(rank), i) % 9) - 4;
}

using Values = double (*)(int rank, size_t i);

Tensor of_rank(const GridRank& rank, int other, size_t count, DType dtype, Values values) {
  return rank.filled(count, dtype, [&](size_t i) { return values(other, i); });
}

void add(Tensor& sums, const Tensor& x) {
  for (int64_t i = 0; i < sums.count(); ++i) sums.as<float>()[i] += x.as<float>()[i];
}

// Reference loops with exactly two quantisations: Σ over nodes of Q(Σ over the ranks of the node of Q(x)), in order.
Tensor expected_chunk(const GridRank& rank, size_t count, DType dtype, const Encoding& encoding, Values values) {
  const NodeGrid& nodes = rank.nodes;
  const comm::Chunk own = comm::chunk_of(count, nodes.size(), rank.rank());
  auto term = [&](int node, int local) {
    Tensor x = tensor::cast_to(rank.context, of_rank(rank, nodes.rank_of(node, local), count, dtype, values),
                               DType::f32, device::MemoryCategory::other);
    if (nodes.ranks_per_node() > 1) round_trip(x, own.offset, own.count, encoding);
    return x.slice(static_cast<int64_t>(own.offset), static_cast<int64_t>(own.offset + own.count));
  };
  Tensor sums;
  for (int node = 0; node < nodes.num_nodes(); ++node) {
    Tensor here = term(node, 0);
    for (int local = 1; local < nodes.ranks_per_node(); ++local) add(here, term(node, local));
    if (nodes.num_nodes() > 1) round_trip(here, 0, own.count, encoding);
    node == 0 ? void(sums = here) : add(sums, here);
  }
  return sums;
}

TEST(QuantisedScatter, DeliversEveryChunkAfterTwoQuantisations) {
  run_on_every_grid([](GridRank& rank) {
    const NodeGrid& nodes = rank.nodes;
    uint64_t inter_node = 0, intra_node = 0;  // expected bytes of all calls so far
    for (DType dtype : {DType::f32, DType::bf16})
      for (int bits : {0, 8, 4})
        for (size_t count : {1u, 7u, 600u, 1033u}) {
          const Encoding encoding{bits, 50};
          const std::string where = fmt::format("{}x{} rank {}: {} {}, {} bits", nodes.num_nodes(),
                                                nodes.ranks_per_node(), rank.rank(), count, name_of(dtype), bits);
          QuantisedScatter scatter(nodes, rank.context, static_cast<int64_t>(count), dtype, encoding);
          const comm::Chunk own = comm::chunk_of(count, nodes.size(), rank.rank());
          Tensor sum = rank.empty(own.count, DType::f32);
          scatter.start(of_rank(rank, rank.rank(), count, dtype, gradient));
          scatter.finish(sum, one_minute());
          EXPECT_TRUE(same_bits(sum, expected_chunk(rank, count, dtype, encoding, gradient))) << where;
          EXPECT_EQ(rank.buffers_in_use(), 0u) << where;

          auto encoded = [&](int k, DType wire) {
            return formula_bytes(comm::chunk_of(count, nodes.size(), k).count, wire, encoding);
          };
          for (int k = 0; k < nodes.size(); ++k)
            if (k % nodes.ranks_per_node() != nodes.local()) intra_node += encoded(k, dtype);
          for (int node = 0; node < nodes.num_nodes(); ++node)
            if (node != nodes.node()) inter_node += encoded(nodes.rank_of(node, nodes.local()), DType::f32);
          ASSERT_EQ(bytes_sent(*nodes.intra_node, comm::Op::all_to_all_v), intra_node) << where;
          ASSERT_EQ(bytes_sent(*nodes.inter_node, comm::Op::all_to_all_v), inter_node) << where;
        }
  });
}

TEST(QuantisedScatter, EqualsReduceScatterWithoutQuantisation) {
  run_on_every_grid([](GridRank& rank) {
    for (size_t count : {13u, 1000u}) {
      const comm::Chunk own = comm::chunk_of(count, rank.nodes.size(), rank.rank());
      // Small integers, whose sums are exact in any order.
      const Tensor all = of_rank(rank, rank.rank(), count, DType::f32, whole_number);
      Tensor want = rank.empty(own.count, DType::f32), got = rank.empty(own.count, DType::f32);
      comm::Call call;
      call.op = comm::Op::reduce_scatter;
      call.in = all.data();
      call.out = want.data();
      call.count = count;
      rank.world_comm.run(call);
      QuantisedScatter scatter(rank.nodes, rank.context, static_cast<int64_t>(count), DType::f32, {.bits = 0});
      scatter.start(all);
      scatter.finish(got, one_minute());
      EXPECT_TRUE(same_bits(got, want)) << rank.nodes.num_nodes() << 'x' << rank.nodes.ranks_per_node();
    }
  });
}

TEST(QuantisedScatter, ErrorIsBoundedByHalfAQuantisationStepPerStage) {
  run_on_nodes(3, 2, [](GridRank& rank) {
    constexpr size_t kCount = 6 * 500;
    const NodeGrid& nodes = rank.nodes;
    const comm::Chunk own = comm::chunk_of(kCount, nodes.size(), rank.rank());
    for (int bits : {8, 4}) {
      QuantisedScatter scatter(nodes, rank.context, kCount, DType::f32, {bits, 2048});
      Tensor sum = rank.empty(own.count, DType::f32);
      scatter.start(of_rank(rank, rank.rank(), kCount, DType::f32, gradient));
      scatter.finish(sum, one_minute());
      // A quantisation step is the largest value divided by `top`, and an error is at most half a step. |x| ≤ 1; the
      // sum of a node's two ranks is at most 2 plus their errors.
      const double top = bits == 8 ? 127 : 7, first = 0.5 / top, node_sum = 2 * (1 + first);
      const double bound = 6 * first + 3 * 0.5 * node_sum / top;
      double worst = 0, squares = 0;
      for (size_t i = 0; i < own.count; ++i) {
        double exact = 0;
        for (int k = 0; k < nodes.size(); ++k)
          exact += static_cast<double>(static_cast<float>(gradient(k, own.offset + i)));
        const double error = std::abs(static_cast<double>(sum.as<float>()[i]) - exact);
        worst = std::max(worst, error);
        squares += error * error;
      }
      EXPECT_LE(worst, bound * (1 + 1e-5));
      EXPECT_GT(worst, bound / 20);  // an error of 0 would mean that values were not quantised
      EXPECT_LT(std::sqrt(squares / static_cast<double>(own.count)), bound / 2);
    }
  });
}

TEST(QuantisedScatter, ReturnsTheMeanInTheOutputType) {
  run_on_nodes(2, 2, [](GridRank& rank) {
    constexpr size_t kCount = 50;
    const comm::Chunk own = comm::chunk_of(kCount, 4, rank.rank());
    QuantisedScatter scatter(rank.nodes, rank.context, kCount, DType::bf16, {.bits = 0});
    Tensor mean = rank.empty(own.count, DType::bf16);
    scatter.start(of_rank(rank, rank.rank(), kCount, DType::bf16, whole_number));
    scatter.finish(mean, one_minute(), 0.25);
    for (size_t i = 0; i < own.count; ++i) {
      double sum = 0;
      for (int k = 0; k < 4; ++k) sum += whole_number(k, own.offset + i);
      EXPECT_EQ(tensor::item(mean, static_cast<int64_t>(i)), sum / 4) << i;
    }
  });
}

TEST(QuantisedScatter, InfinityOfOneRankReachesTheOwnerOfItsChunk) {
  run_on_nodes(2, 2, [](GridRank& rank) {
    constexpr size_t kCount = 400;
    const comm::Chunk own = comm::chunk_of(kCount, 4, rank.rank());
    for (int bits : {8, 4}) {
      Tensor all = of_rank(rank, rank.rank(), kCount, DType::f16, gradient);
      // element 250 belongs to chunk 2
      if (rank.rank() == 1) all.as<Float16>()[250] = Float16(std::numeric_limits<float>::infinity());
      QuantisedScatter scatter(rank.nodes, rank.context, kCount, DType::f16, {bits, 2048});
      Tensor sum = rank.empty(own.count, DType::f32);
      scatter.start(all);
      scatter.finish(sum, one_minute());
      for (float value : sum.span<float>()) EXPECT_EQ(std::isfinite(value), rank.rank() != 2);
    }
  });
}

TEST(QuantisedScatter, SupportsSeveralBucketsInFlight) {
  for (const char* transport : {"inproc", "auto"})
    run_on_nodes(
        3, 2,
        [](GridRank& rank) {
          const size_t counts[] = {900, 64, 4001};
          std::vector<std::unique_ptr<QuantisedScatter>> scatters;
          for (size_t count : counts)
            scatters.push_back(
                std::make_unique<QuantisedScatter>(rank.nodes, rank.context, static_cast<int64_t>(count), DType::bf16));
          for (int round = 0; round < 2; ++round) {
            for (size_t i = 0; i < 3; ++i) {
              Tensor all = of_rank(rank, rank.rank(), counts[i], DType::bf16, gradient);
              scatters[i]->start(all);
              std::memset(all.data(), 0xff, all.bytes());  // allowed: the values may be overwritten after `start`
              if (i > 0) scatters[i - 1]->advance(one_minute());
            }
            for (size_t i = 0; i < 3; ++i) {
              Tensor sum = rank.empty(comm::chunk_of(counts[i], 6, rank.rank()).count, DType::f32);
              scatters[i]->finish(sum, one_minute());
              EXPECT_TRUE(same_bits(sum, expected_chunk(rank, counts[i], DType::bf16, {.bits = 4}, gradient)));
            }
          }
          EXPECT_EQ(rank.buffers_in_use(), 0u);
        },
        transport);
}

}  // namespace
}  // namespace esp::sync

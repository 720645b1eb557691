// Replayed values must be correct, bit-identical on every rank and summed in the documented order. The figure of the
// 4-rank ring has nine frames.
#include "esp/comm/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "esp/base/rng.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Values spread over many powers of two, so that the bits depend on the summation order.
float value(int rank, size_t element) {
  double unit = random_unit(11, static_cast<uint64_t>(rank), element);
  return static_cast<float>(
      (unit - 0.5) * std::ldexp(1.0, static_cast<int>(random_bits(12, static_cast<uint64_t>(rank), element) % 20)));
}

CollectiveSpec spec_of(Op op, int size, size_t count) {
  CollectiveSpec spec;
  spec.op = op;
  spec.size = size;
  spec.count = count;
  return spec;
}

// The inputs x_r of an all-reduce, one per rank.
std::vector<Bytes> float_inputs(int size, size_t count) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < size; ++r) {
    std::vector<float> mine;
    for (size_t i = 0; i < count; ++i) mine.push_back(value(r, i));
    inputs.push_back(bytes_of(mine));
  }
  return inputs;
}

std::vector<Bytes> run(Op op, std::string_view name, const CollectiveSpec& spec, const std::vector<Bytes>& inputs,
                       DType dtype = DType::f32, ReduceOp reduce = ReduceOp::sum) {
  CollectiveSpec mine = spec;
  mine.op = op;
  auto specs = specs_for_all_ranks(mine);
  return replay(specs, build_all(find_algorithm(op, name), specs), inputs, dtype, reduce);
}

TEST(Replay, AllReduceIsBitIdenticalOnEveryRank) {
  for (const AlgorithmRow* row : algorithms_for(Op::all_reduce))
    for (int size : {1, 2, 3, 4, 6, 7, 8, 12, 17, 27}) {
      CollectiveSpec spec = spec_of(Op::all_reduce, size, 101);
      auto inputs = float_inputs(size, 101);
      auto outputs = run(Op::all_reduce, row->name, spec, inputs);
      for (const Bytes& output : outputs) EXPECT_EQ(output, outputs[0]) << row->name << " " << size;
      auto sums = values_of<float>(outputs[0]);
      for (size_t i = 0; i < sums.size(); ++i) {
        double exact = 0, scale = 0;
        for (int r = 0; r < size; ++r) {
          exact += value(r, i);
          scale += std::abs(value(r, i));
        }
        EXPECT_NEAR(sums[i], exact, 1e-5 * scale) << row->name << " " << size << " element " << i;
      }
    }
}

TEST(Replay, RingSumsEachChunkInRingOrder) {
  const int size = 5;
  const size_t count = 23;
  for (auto [name, shift] : {std::pair{"ring", 1}, std::pair{"ring_shift0", 0}}) {
    auto sums =
        values_of<float>(run(Op::all_reduce, name, spec_of(Op::all_reduce, size, count), float_inputs(size, count))[2]);
    for (int k = 0; k < size; ++k) {
      Chunk chunk = chunk_of(count, size, k);
      for (size_t i = chunk.offset; i < chunk.offset + chunk.count; ++i) {
        float sum = value((k + shift) % size, i);
        for (int step = 1; step < size; ++step) sum = value((k + shift + step) % size, i) + sum;
        EXPECT_EQ(sums[i], sum) << name << " element " << i;
      }
    }
  }
}

TEST(Replay, DirectSumsInRankOrderForAnyChunking) {
  for (int size : {2, 3, 5, 8}) {
    const size_t count = 37;
    auto inputs = float_inputs(size, count);
    std::vector<float> want;
    for (size_t i = 0; i < count; ++i) {
      float sum = value(0, i);
      for (int r = 1; r < size; ++r) sum += value(r, i);
      want.push_back(sum);
    }
    CollectiveSpec spec = spec_of(Op::all_reduce, size, count);
    for (auto name : {"direct", "naive"}) EXPECT_EQ(values_of<float>(run(Op::all_reduce, name, spec, inputs)[0]), want);
    spec.root = size - 1;
    EXPECT_EQ(values_of<float>(run(Op::reduce, "naive", spec, inputs)[static_cast<size_t>(size) - 1]), want);
    auto pieces = run(Op::reduce_scatter, "direct", spec, inputs);
    for (int r = 0; r < size; ++r) {
      Chunk own = chunk_of(count, size, r);
      std::vector<float> mine(want.begin() + static_cast<ptrdiff_t>(own.offset),
                              want.begin() + static_cast<ptrdiff_t>(own.offset + own.count));
      EXPECT_EQ(values_of<float>(pieces[static_cast<size_t>(r)]), mine);
    }
  }
}

TEST(Replay, ReduceScatterPlusAllGatherMatchesAllReduce) {
  for (int size = 1; size <= 9; ++size)
    for (auto [scatter, gather, whole] :
         {std::tuple{"ring", "ring", "ring"}, std::tuple{"direct", "pairwise", "direct"}}) {
      CollectiveSpec spec = spec_of(Op::all_reduce, size, 50);
      auto inputs = float_inputs(size, 50);
      auto pieces = run(Op::reduce_scatter, scatter, spec, inputs);
      EXPECT_EQ(run(Op::all_gather, gather, spec, pieces), run(Op::all_reduce, whole, spec, inputs)) << size;
    }
}

TEST(Replay, AllToAllMovesBlocksToDestinations) {
  for (int size : {1, 2, 3, 5, 8, 12}) {
    auto n = static_cast<size_t>(size);
    std::vector<Bytes> inputs;
    for (int r = 0; r < size; ++r) {
      std::vector<int32_t> mine;
      for (int d = 0; d < size; ++d)
        for (int i = 0; i < 3; ++i) mine.push_back(r * 10000 + d * 100 + i);
      inputs.push_back(bytes_of(mine));
    }
    for (const AlgorithmRow* row : algorithms_for(Op::all_to_all)) {
      auto outputs = run(Op::all_to_all, row->name, spec_of(Op::all_to_all, size, n * 3), inputs, DType::i32);
      for (int r = 0; r < size; ++r) {
        std::vector<int32_t> want;
        for (int s = 0; s < size; ++s)
          for (int i = 0; i < 3; ++i) want.push_back(s * 10000 + r * 100 + i);
        EXPECT_EQ(values_of<int32_t>(outputs[static_cast<size_t>(r)]), want) << row->name << " " << size;
      }
    }
  }
}

TEST(Replay, AverageDividesSumOnce) {
  std::vector<Bytes> inputs = {bytes_of<int32_t>({1, 2}), bytes_of<int32_t>({4, 5}), bytes_of<int32_t>({7, 9})};
  auto outputs = run(Op::all_reduce, "ring", spec_of(Op::all_reduce, 3, 2), inputs, DType::i32, ReduceOp::avg);
  EXPECT_EQ(values_of<int32_t>(outputs[1]), (std::vector<int32_t>{4, 5}));
}

TEST(RingFrames, MatchNineFramesOfFigure) {
  std::vector<RingFrame> frames = ring_frames(4);
  ASSERT_EQ(frames.size(), 9u);
  using Cells = std::vector<std::vector<std::string>>;
  using Names = std::vector<std::string>;
  const Cells start = {
      {"a0", "a1", "a2", "a3"}, {"b0", "b1", "b2", "b3"}, {"c0", "c1", "c2", "c3"}, {"d0", "d1", "d2", "d3"}};
  const Cells one = {{"a0", "a1", "a2", "a3+d3"},
                     {"a0+b0", "b1", "b2", "b3"},
                     {"c0", "b1+c1", "c2", "c3"},
                     {"d0", "d1", "c2+d2", "d3"}};
  const Cells two = {{"a0", "a1", "a2+c2+d2", "a3+d3"},
                     {"a0+b0", "b1", "b2", "a3+b3+d3"},
                     {"a0+b0+c0", "b1+c1", "c2", "c3"},
                     {"d0", "b1+c1+d1", "c2+d2", "d3"}};
  const Cells three = {{"a0", "a1+b1+c1+d1", "a2+c2+d2", "a3+d3"},
                       {"a0+b0", "b1", "a2+b2+c2+d2", "a3+b3+d3"},
                       {"a0+b0+c0", "b1+c1", "c2", "a3+b3+c3+d3"},
                       {"a0+b0+c0+d0", "b1+c1+d1", "c2+d2", "d3"}};
  const Cells sums = {{"", "a1+b1+c1+d1", "", ""},
                      {"", "", "a2+b2+c2+d2", ""},
                      {"", "", "", "a3+b3+c3+d3"},
                      {"a0+b0+c0+d0", "", "", ""}};
  const Names all = {"a0+b0+c0+d0", "a1+b1+c1+d1", "a2+b2+c2+d2", "a3+b3+c3+d3"};
  const Names nothing(4);
  EXPECT_EQ(frames[0].cells, start);
  EXPECT_EQ(frames[0].moving, nothing);
  EXPECT_EQ(frames[1].cells, start);
  EXPECT_EQ(frames[1].moving, (Names{"a0", "b1", "c2", "d3"}));
  EXPECT_EQ(frames[2].cells, one);
  EXPECT_EQ(frames[2].moving, nothing);
  EXPECT_EQ(frames[3].cells, one);
  EXPECT_EQ(frames[3].moving, (Names{"a3+d3", "a0+b0", "b1+c1", "c2+d2"}));
  EXPECT_EQ(frames[4].cells, two);
  EXPECT_EQ(frames[5].cells, two);
  EXPECT_EQ(frames[5].moving, (Names{"a2+c2+d2", "a3+b3+d3", "a0+b0+c0", "b1+c1+d1"}));
  EXPECT_EQ(frames[6].cells, three);
  EXPECT_EQ(frames[7].cells, sums);
  EXPECT_EQ(frames[8].cells, Cells(4, all));
}

}  // namespace
}  // namespace esp::comm

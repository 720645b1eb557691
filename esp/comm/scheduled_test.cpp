// Runs every algorithm on every group size, with a thread per rank; results must equal those of the replay bit for bit.
#include "esp/comm/scheduled_communicator.h"

#include <gtest/gtest.h>

#include <cstring>

#include <fmt/format.h>

#include "esp/base/half.h"
#include "esp/base/rng.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/arguments.h"
#include "esp/comm/replay.h"
#include "esp/comm/test_options.h"
#include "esp/comm/validate.h"
#include "esp/net/inproc/threads.h"

namespace esp::comm {
namespace {

using namespace std::chrono_literals;

// Random values for which sums are rounded and products stay finite.
Bytes random_input(DType dtype, size_t count, uint64_t seed) {
  Bytes bytes(count * size_of(dtype));
  for (size_t i = 0; i < count; ++i) {
    double value = 0.5 + random_unit(seed, 1, i);
    std::byte* at = bytes.data() + i * size_of(dtype);
    auto put = [&](auto x) { std::memcpy(at, &x, sizeof x); };
    switch (dtype) {
      case DType::f64:
        put(value);
        break;
      case DType::f32:
        put(static_cast<float>(value));
        break;
      case DType::bf16:
        put(BFloat16(static_cast<float>(value)));
        break;
      case DType::f16:
        put(Float16(static_cast<float>(value)));
        break;
      case DType::i64:
        put(static_cast<int64_t>(value * 1000));
        break;
      case DType::i32:
        put(static_cast<int32_t>(value * 1000));
        break;
      case DType::i16:
        put(static_cast<int16_t>(value * 1000));
        break;
      case DType::i8:
        put(static_cast<int8_t>(value * 20));
        break;
      case DType::u8:
        put(static_cast<uint8_t>(value * 20));
        break;
    }
  }
  return bytes;
}

bool reduces(Op op) {
  return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter;
}
bool rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}

struct Case {
  CollectiveSpec spec;
  std::string algorithm;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  bool in_place = false;

  std::string name() const {
    return fmt::format("{} {} size {} count {} root {} {} {} {}", name_of(spec.op), algorithm, spec.size, spec.count,
                       spec.root, name_of(dtype), kernel::name_of(reduce), in_place ? "in place" : "out of place");
  }
};

// For in-place calls: offset of the input inside the output, or of the output inside the input.
size_t own_offset(const Case& c, int rank) {
  return chunk_of(c.spec.count, c.spec.size, rank).offset;
}

// Runs the case with the communicator and returns this rank's result.
Bytes run_case(Communicator& comm, const Case& c, const Bytes& input) {
  size_t unit = size_of(c.dtype);
  Call call;
  call.op = c.spec.op;
  call.count = c.spec.count;
  call.root = c.spec.root;
  call.dtype = c.dtype;
  call.reduce = c.reduce;
  call.algorithm = c.algorithm;
  BufferCounts extents = buffer_counts_of(call, comm.rank(), comm.size());
  bool larger_out = call.op == Op::all_gather || call.op == Op::gather;
  bool larger_in = call.op == Op::reduce_scatter || call.op == Op::scatter;
  if (!c.in_place || extents.in == 0 || extents.out == 0) {
    Bytes in = input, out(extents.out * unit, std::byte{0x5a});
    call.in = in.data();
    call.out = out.data();
    comm.run(call);
    EXPECT_EQ(in, input) << "the input changed: " << c.name();
    return out;
  }
  size_t offset = larger_out || larger_in ? own_offset(c, comm.rank()) * unit : 0;
  Bytes buffer(std::max(extents.in, extents.out) * unit);
  std::memcpy(buffer.data() + (larger_out ? offset : 0), input.data(), extents.in * unit);
  call.in = buffer.data() + (larger_out ? offset : 0);
  call.out = buffer.data() + (larger_in ? offset : 0);
  comm.run(call);
  auto* out = static_cast<std::byte*>(call.out);
  return Bytes(out, out + extents.out * unit);
}

// Runs a list of cases in one group; every rank checks its own results.
void expect_replayed(int size, const std::vector<Case>& cases, const CommOptions& options) {
  std::vector<std::vector<Bytes>> inputs, outputs;
  for (const Case& c : cases) {
    std::vector<CollectiveSpec> specs = specs_for_all_ranks(c.spec);
    std::vector<Bytes> in;
    for (int r = 0; r < size; ++r)
      in.push_back(random_input(c.dtype, sizes_of(specs[static_cast<size_t>(r)]).input, static_cast<uint64_t>(r) + 7));
    const AlgorithmRow& row = find_algorithm(c.spec.op, c.algorithm);
    outputs.push_back(replay(specs, build_all(row, specs), in, c.dtype, c.reduce));
    inputs.push_back(std::move(in));
  }
  net::run_threads(size, [&](net::World& world) {
    auto comm = make_communicator(world, world.world_group(), options);
    auto r = static_cast<size_t>(world.rank);
    for (size_t i = 0; i < cases.size(); ++i) {
      Bytes got = run_case(*comm, cases[i], inputs[i][r]);
      EXPECT_EQ(got, outputs[i][r]) << cases[i].name() << " on rank " << r;
    }
  });
}

TEST(ScheduledCommunicator, MatchesReplayForEveryAlgorithmBitForBit) {
  uint64_t draw = 0;
  for (int size = 1; size <= 9; ++size) {
    std::vector<Case> cases;
    for (const AlgorithmRow& row : algorithms()) {
      if (row.op == Op::barrier || row.op == Op::all_to_all_v) continue;
      auto n = static_cast<size_t>(size);
      std::vector<size_t> counts =
          row.op == Op::all_to_all ? std::vector<size_t>{0, n, 37 * n} : std::vector<size_t>{0, 1, n + 1, 997};
      for (size_t count : counts)
        for (bool in_place : {false, true}) {
          Case c;
          c.spec.op = row.op;
          c.spec.size = size;
          c.spec.count = count;
          c.spec.root = rooted(row.op) ? static_cast<int>(draw % n) : 0;
          c.algorithm = row.name;
          // Type and reduction are random, so that the cases together cover many combinations.
          c.dtype = kAllDTypes[random_bits(1, 2, draw) % std::size(kAllDTypes)];
          if (reduces(row.op)) c.reduce = kernel::kAllReduceOps[random_bits(3, 4, draw) % 5];
          c.in_place = in_place && row.op != Op::all_to_all;
          ++draw;
          if (row.applies && !row.applies(c.spec).empty()) continue;
          cases.push_back(c);
        }
    }
    expect_replayed(size, cases, test_options("inproc"));
  }
}

TEST(ScheduledCommunicator, AllToAllWorksInPlace) {
  for (int size : {2, 3, 4, 8}) {
    std::vector<Case> cases;
    for (const AlgorithmRow* row : algorithms_for(Op::all_to_all)) {
      Case c;
      c.spec.op = Op::all_to_all;
      c.spec.size = size;
      c.spec.count = static_cast<size_t>(size) * 33;
      c.algorithm = row->name;
      c.in_place = true;
      if (row->applies && !row->applies(c.spec).empty()) continue;
      cases.push_back(c);
    }
    expect_replayed(size, cases, test_options("inproc"));
  }
}

}  // namespace
}  // namespace esp::comm

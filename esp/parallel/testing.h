// Test support: one rank of a model-parallel group with everything it needs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "esp/autograd/tape.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/model_parallel_ops.h"

namespace esp::parallel {

// One rank. If `world` is null, it is a single device with the same operations.
struct ModelRank {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  Mesh mesh;
  std::unique_ptr<ModelParallelOps> regions;
  autograd::Tape tape{context};

  explicit ModelRank(comm::Communicator* world = nullptr, const MeshShape& shape = {},
                     const ModelParallelOptions& options = {})
      : mesh(shape, world), regions(make_model_parallel_ops(mesh, options)) {}

  nn::ModelShards shares() const { return {{mesh.coordinates().tp, mesh.shape().tp}, {}}; }
  nn::ForwardContext pass(int64_t num_sequences) {
    nn::ForwardContext pass;
    pass.tape = &tape;
    pass.seed = 7;
    pass.first_sequence = 5;
    pass.num_sequences = num_sequences;
    pass.ops = regions.get();
    return pass;
  }
};

// Runs ranks as threads of this process. `algorithms` as in comm::CommOptions. Tests that count bytes use ring
// algorithms, because rings send the least.
inline constexpr const char* kRings = "all_reduce=ring,all_gather=ring,reduce_scatter=ring";
inline void run_model_ranks(int size, const std::function<void(comm::Communicator*)>& body,
                            const std::string& algorithms = "") {
  net::run_threads(size, [&](net::World& world) {
    comm::CommOptions options = comm::test_options("inproc", size_t{64} << 10);
    options.algorithms = algorithms;
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    body(comm.get());
  });
}

// The elements of parameter `p` on this rank, in local order, taken from the flat whole tensor of which `p` is a shard.
template <typename T>
std::vector<T> part_of(const nn::Parameter& p, std::span<const T> whole) {
  if (p.cut_dim < 0) return {whole.begin(), whole.end()};
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < p.shape.rank(); ++i) (i < p.cut_dim ? outer : inner) *= i == p.cut_dim ? 1 : p.shape.dim(i);
  std::vector<T> part;
  for (int64_t o = 0; o < outer; ++o)
    for (const nn::IndexRange& section : p.sections) {
      const auto first = whole.begin() + (o * p.global_shape.dim(p.cut_dim) + section.begin) * inner;
      part.insert(part.end(), first, first + section.count() * inner);
    }
  return part;
}

}  // namespace esp::parallel

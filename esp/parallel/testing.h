// One rank of a model that several hold, with all it needs to run; and its part of what one holder has, for tests.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "esp/autograd/tape.h"
#include "esp/comm/over.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/regions.h"

namespace esp::parallel {

// Without a world it is the one holder of everything, by the same regions.
struct Holder {
  device::MemoryAccount account;
  device::Pool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  Mesh mesh;
  std::unique_ptr<Regions> regions;
  autograd::Tape tape{context};

  explicit Holder(comm::Communicator* world = nullptr, const MeshShape& shape = {}, const RegionOptions& options = {})
      : mesh(shape, world), regions(make_regions(mesh, options)) {}

  nn::Shares shares() const { return {{mesh.here().tp, mesh.shape().tp}, {}}; }
  nn::Pass pass(int64_t num_sequences) {
    nn::Pass pass;
    pass.tape = &tape;
    pass.seed = 7;
    pass.first_sequence = 5;
    pass.num_sequences = num_sequences;
    pass.regions = regions.get();
    return pass;
  }
};

// Ranks as threads of this process. `algorithms` as in comm::CommOptions: bytes are counted where they are rings, which
// send the least.
inline constexpr const char* kRings = "all_reduce=ring,all_gather=ring,reduce_scatter=ring";
inline void with_holders(int size, const std::function<void(comm::Communicator*)>& body,
                         const std::string& algorithms = "") {
  net::run_threads(size, [&](net::World& world) {
    comm::CommOptions options = comm::over("inproc", size_t{64} << 10);
    options.algorithms = algorithms;
    const auto comm = comm::make_communicator(world, world.everyone(), options);
    body(comm.get());
  });
}

// Of a tensor of the whole parameter `p` is a part of, flat, the elements that are here, in the order in which they
// lie.
template <typename T>
std::vector<T> part_of(const nn::Parameter& p, std::span<const T> whole) {
  if (p.cut_dim < 0) return {whole.begin(), whole.end()};
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < p.shape.rank(); ++i) (i < p.cut_dim ? outer : inner) *= i == p.cut_dim ? 1 : p.shape.dim(i);
  std::vector<T> part;
  for (int64_t o = 0; o < outer; ++o)
    for (const nn::Interval& section : p.sections) {
      const auto first = whole.begin() + (o * p.global_shape.dim(p.cut_dim) + section.begin) * inner;
      part.insert(part.end(), first, first + section.count() * inner);
    }
  return part;
}

}  // namespace esp::parallel

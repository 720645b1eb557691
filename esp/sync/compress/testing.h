// Helpers of compressor tests: test vectors, encode-decode round trips, and ranks that exchange them.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/rng.h"
#include "esp/comm/test_options.h"
#include "esp/kernel/elementwise.h"
#include "esp/net/inproc/threads.h"
#include "esp/sync/compress/compressor.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

template <typename T>
using Values = std::vector<T>;

template <typename T>
constexpr DType type_of = sizeof(T) == 8 ? DType::f64 : DType::f32;

inline Values<float> normal_values(int64_t count, uint64_t seed, double spread = 1) {
  Values<float> x(static_cast<size_t>(count));
  kernel::fill_normal(x.data(), 0, spread, seed, 5, 0, count, DType::f32, {});
  return x;
}

template <typename T>
std::vector<std::byte> code_of(const Compressor& compressor, const Values<T>& x, const RandomKey& draw = {}) {
  const auto count = static_cast<int64_t>(x.size());
  compressor.check(count);
  std::vector<std::byte> code(compressor.encoded_bytes(count, type_of<T>));
  code.resize(compressor.encode(code.data(), x.data(), count, type_of<T>, draw, {}));
  return code;
}

// Returns C(x): encodes x and decodes it again.
template <typename T>
Values<T> compressed(const Compressor& compressor, const Values<T>& x, const RandomKey& draw = {}) {
  Values<T> y(x.size());
  compressor.decode(y.data(), WriteMode::overwrite, code_of(compressor, x, draw), static_cast<int64_t>(x.size()),
                    type_of<T>, draw, {});
  return y;
}

template <typename T>
double norm2(const Values<T>& x) {
  double sum = 0;
  for (T v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}
template <typename T>
double distance2(const Values<T>& a, const Values<T>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return sum;
}
template <typename T>
bool same_bits(const Values<T>& a, const Values<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Memory pool and thread pool of one rank.
struct RankResources {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
};

inline void with_ranks_of(int size, const std::function<void(comm::Communicator&)>& body) {
  net::run_threads(size, [&](net::World& world) {
    auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
    body(*comm);
  });
}

inline uint64_t bytes_sent_by(const comm::Communicator& comm) {
  uint64_t bytes = 0;
  for (const comm::CallStats& row : comm.stats()) bytes += row.bytes_sent;
  return bytes;
}

}  // namespace esp::sync

// Input values of a benchmarked call, and its expected output.
//
// Values are small integers, so sums over all ranks are exact in every element type and in any order of summation. A
// difference is therefore a wrong result, never rounding. Only avg is compared within the type's precision.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "esp/base/half.h"

namespace esp::bench {

inline size_t element_size(const std::string& dtype) {
  if (dtype == "f64" || dtype == "i64") return 8;
  if (dtype == "f32" || dtype == "i32") return 4;
  if (dtype == "bf16" || dtype == "f16" || dtype == "i16") return 2;
  if (dtype == "i8" || dtype == "u8") return 1;
  throw std::runtime_error("unknown element type " + dtype);
}

struct Pattern {
  std::string op, dtype, reduce;
  int size, rank, root;
  size_t count, chunk;

  void fill(std::byte* data, size_t elements) const {
    each_type([&](auto zero) {
      using T = decltype(zero);
      T* values = reinterpret_cast<T*>(data);
      size_t first = op == "all_gather" || op == "gather" ? static_cast<size_t>(rank) * chunk : 0;
      for (size_t i = 0; i < elements; ++i) values[i] = T(static_cast<float>(value(rank, first + i)));
    });
  }

  uint64_t count_wrong(const std::byte* data, size_t elements) const {
    if ((op == "reduce" || op == "gather") && rank != root) return 0;
    bool reduces = op == "all_reduce" || op == "reduce" || op == "reduce_scatter";
    size_t first = op == "reduce_scatter" || op == "scatter" ? static_cast<size_t>(rank) * chunk : 0;
    std::vector<double> reduced;
    if (reduces)
      for (size_t i = 0; i < period(); ++i) reduced.push_back(reduction(i));
    double slack = reduce == "avg" && reduces ? precision() : 0;
    uint64_t wrong = 0;
    each_type([&](auto zero) {
      using T = decltype(zero);
      const T* values = reinterpret_cast<const T*>(data);
      for (size_t i = 0; i < elements; ++i) {
        double expected = reduces ? reduced[(first + i) % period()] : moved(first + i);
        double got = static_cast<double>(to_number(values[i]));
        if (!(std::abs(got - expected) <= slack * std::abs(expected))) ++wrong;
      }
    });
    return wrong;
  }

 private:
  // Value of rank `source` at index i of the full buffer. Values repeat after period() elements.
  int value(int source, size_t i) const {
    if (reduce == "prod") return (i + static_cast<size_t>(source)) % static_cast<size_t>(size) == 0 ? 2 : 1;
    uint32_t modulus = size <= 40 ? 4 : 2;  // keeps the sum over all ranks below 128, the limit of i8
    // A hash with a prime period: a block of another rank or of another position has other values.
    uint32_t mixed = (static_cast<uint32_t>(i % kPrime) * 131u + static_cast<uint32_t>(source) * 7919u) * 2654435761u;
    return static_cast<int>((mixed >> 16) % modulus);
  }
  static constexpr size_t kPrime = 509;
  size_t period() const { return reduce == "prod" ? static_cast<size_t>(size) : kPrime; }

  double reduction(size_t i) const {
    double result = value(0, i);
    for (int source = 1; source < size; ++source) {
      double next = value(source, i);
      if (reduce == "prod")
        result *= next;
      else if (reduce == "min")
        result = std::min(result, next);
      else if (reduce == "max")
        result = std::max(result, next);
      else
        result += next;
    }
    if (reduce != "avg") return result;
    bool whole = dtype[0] == 'i' || dtype[0] == 'u';
    return whole ? std::trunc(result / size) : result / size;
  }

  // Expected output at index i for operations that only move data.
  double moved(size_t i) const {
    if (op == "broadcast" || op == "scatter") return value(root, i);
    if (op == "all_gather" || op == "gather") return value(static_cast<int>(i / std::max<size_t>(1, chunk)), i);
    if (op == "all_to_all") {
      size_t block = std::max<size_t>(1, chunk);
      return value(static_cast<int>(i / block), static_cast<size_t>(rank) * block + i % block);
    }
    return value((rank + size - 1) % size, i);  // sendrecv: every rank receives from the previous one
  }

  double precision() const {
    if (dtype == "bf16") return 0x1p-6;
    if (dtype == "f16") return 0x1p-9;
    return dtype == "f32" ? 0x1p-20 : dtype == "f64" ? 0x1p-48 : 0;
  }

  template <typename T>
  static double to_number(T value) {
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>)
      return static_cast<float>(value);
    else
      return static_cast<double>(value);
  }

  template <typename Body>
  void each_type(Body body) const {
    if (dtype == "f64")
      body(double{});
    else if (dtype == "f32")
      body(float{});
    else if (dtype == "bf16")
      body(BFloat16{});
    else if (dtype == "f16")
      body(Float16{});
    else if (dtype == "i64")
      body(int64_t{});
    else if (dtype == "i32")
      body(int32_t{});
    else if (dtype == "i16")
      body(int16_t{});
    else if (dtype == "i8")
      body(int8_t{});
    else
      body(uint8_t{});
  }
};

}  // namespace esp::bench

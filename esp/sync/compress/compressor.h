// Compressors: encode a vector in fewer bytes, with a bounded error.
//
// A compressor encodes n values (f32 or f64) and decodes them. `guarantee` returns its class and error bound. An
// unbiased compressor has E C(x) = x and E‖C(x) − x‖² ≤ ω‖x‖²; it needs no error feedback. A contractive compressor has
// E‖C(x) − x‖² ≤ (1 − δ)‖x‖²; it needs error feedback (error_feedback.h). docs/compression.md documents the formats and
// lengths of encoded values. f64 keeps its precision where a compressor sends values unchanged (identity, the
// sparsifiers); other compressors round it to f32.
//
// Stateless: randomness is a function of a RandomKey, so an encoding can be repeated, and ranks that share a seed draw
// the same numbers. Safe from any thread; scratch memory is per thread. Decoding bytes that no encoder produces throws
// CommError (corrupt).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/write_mode.h"

namespace esp::sync {

using kernel::WriteMode;

// Selects a stream of random numbers. Every exchange has its own event number, which is equal on all ranks.
struct RandomKey {
  uint64_t seed = 0, event = 0;
  uint32_t sender = 0;                             // rank that encodes
  static constexpr uint32_t kAllRanks = 0xffffff;  // `sender` of random numbers that are equal on every rank
  RandomKey for_chunk(int k) const {
    return {seed + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(k + 1), event, sender};
  }
  uint64_t private_stream() const { return event << 24 | sender; }
  uint64_t shared_stream() const { return event << 24 | kAllRanks; }
};

// Error bounds for all vectors of one length: `omega` of an unbiased compressor, `delta` of a contractive one. An empty
// bound means that the compressor is not of that class.
struct Guarantee {
  std::optional<double> omega, delta;
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // Throws UsageError if the compressor does not support vectors of this length.
  virtual void check(int64_t count) const;
  // Bytes of an encoded vector of `count` values. If the length depends on the values: the largest possible length.
  virtual size_t encoded_bytes(int64_t count, DType dtype) const = 0;
  virtual bool fixed_length() const { return true; }
  // The element type in which encoded vectors can be added, so that the sum decodes to the sum of the vectors. nullopt:
  // encoded vectors cannot be added.
  virtual std::optional<DType> summable(DType) const { return {}; }
  virtual Guarantee guarantee(int64_t count) const = 0;

  // Encodes `x` to `code`. Returns the number of bytes written.
  virtual size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey& draw,
                        const device::Stream& stream) const = 0;
  // Decodes to `y`. `draw` must be the key with which the vector was encoded. After an error the content of `y` is
  // undefined.
  virtual void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype,
                      const RandomKey& draw, const device::Stream& stream) const = 0;
};

// Parses a spec such as "topk:0.01". For an unknown name the UsageError lists the known names; for a wrong option it
// shows the options of that compressor.
std::unique_ptr<Compressor> make_compressor(std::string_view spec);

struct CompressorRow {
  std::string_view name, options, help;
  std::unique_ptr<Compressor> (*make)(class SpecArguments& arguments);
};
std::span<const CompressorRow> compressors();

// Base of the compressors that compute in f32: f64 is rounded before encoding and widened after decoding.
class NarrowCompressor : public Compressor {
 public:
  size_t encoded_bytes(int64_t count, DType) const final { return bytes_of(count); }
  size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey& draw,
                const device::Stream& stream) const final;
  void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype,
              const RandomKey& draw, const device::Stream& stream) const final;

 protected:
  virtual size_t bytes_of(int64_t count) const = 0;
  virtual void encode_floats(std::byte* code, const float* x, int64_t count, const RandomKey& draw,
                             const device::Stream& stream) const = 0;
  virtual void decode_floats(float* y, WriteMode into, const std::byte* code, int64_t count,
                             const device::Stream& stream) const = 0;
};

// CommError: «encoded vector of 5 values: got 12 bytes; expected 16».
void require_length(std::span<const std::byte> code, size_t bytes, int64_t count);
[[noreturn]] void fail_corrupt(std::string_view what);

}  // namespace esp::sync

// Compressors: encode a vector in fewer bytes, with a known error.
//
// A compressor encodes n values (f32 or f64) and decodes them. Two classes, as data: unbiased compressors (E C(x) = x
// and E‖C(x) − x‖² ≤ ω‖x‖²) need no error feedback; contractive ones (E‖C(x) − x‖² ≤ (1 − δ)‖x‖²) need error feedback
// (feedback.h). Formats and lengths of encoded values are in docs/compression.md. f64 keeps its precision where a
// compressor transmits values unchanged (identity, the sparsifiers) and is rounded to f32 elsewhere.
//
// Stateless: randomness is a function of a Draw, so an encoding can be repeated, and ranks that share a seed draw the
// same numbers. Safe from any thread; scratch memory is per thread. Encoded data that no encoder produces raises
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

// Selects random numbers. Every exchange has a unique event, equal on all ranks.
struct RandomKey {
  uint64_t seed = 0, event = 0;
  uint32_t who = 0;                                // the rank that encodes
  static constexpr uint32_t kAllRanks = 0xffffff;  // drawn identically on every rank
  RandomKey of_chunk(int k) const { return {seed + 0x9e3779b97f4a7c15u * static_cast<uint64_t>(k + 1), event, who}; }
  uint64_t own() const { return event << 24 | who; }
  uint64_t shared() const { return event << 24 | kAllRanks; }
};

// Bounds for every vector of one length; none: not of that class.
struct Guarantee {
  std::optional<double> omega, delta;
};

class Compressor {
 public:
  virtual ~Compressor() = default;

  // UsageError when vectors of this length cannot be compressed.
  virtual void check(int64_t count) const;
  // Exact, or an upper bound where the length depends on the values.
  virtual size_t code_bytes(int64_t count, DType dtype) const = 0;
  virtual bool fixed_length() const { return true; }
  // The encoded vector is an array of this type, and the sum of encoded vectors encodes the sum; none: cannot be added.
  virtual std::optional<DType> summable(DType) const { return {}; }
  virtual Guarantee guarantee(int64_t count) const = 0;

  // Returns the bytes written.
  virtual size_t encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey& draw,
                        const device::Stream& stream) const = 0;
  // `draw` must equal that of the encoding. After an error the content of y is undefined.
  virtual void decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype,
                      const RandomKey& draw, const device::Stream& stream) const = 0;
};

// A choice with its options, "topk:0.01". UsageError lists the known names, or the options of the name.
std::unique_ptr<Compressor> make_compressor(std::string_view spec);

struct CompressorRow {
  std::string_view name, options, help;
  std::unique_ptr<Compressor> (*make)(class Arguments& arguments);
};
std::span<const CompressorRow> compressors();

// Base of the compressors that compute in f32: f64 is rounded before encoding and widened after decoding.
class NarrowCompressor : public Compressor {
 public:
  size_t code_bytes(int64_t count, DType) const final { return bytes_of(count); }
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
[[noreturn]] void damaged(std::string_view what);

}  // namespace esp::sync

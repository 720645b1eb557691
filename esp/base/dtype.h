// Element types and their names. The names are those of NumPy, with bf16 and f16 as short forms. parse_dtype also
// accepts the names of nccl-tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace esp {

enum class DType : uint8_t { f64, f32, bf16, f16, i64, i32, i16, i8, u8 };
inline constexpr DType kAllDTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64,
                                       DType::i32, DType::i16, DType::i8,   DType::u8};

size_t size_of(DType type);
std::string_view name_of(DType type);
DType parse_dtype(std::string_view name);  // throws a UsageError that lists the known names
bool is_floating(DType type);

}  // namespace esp

#include "esp/base/dtype.h"

#include "esp/base/check.h"
#include "esp/base/table.h"

namespace esp {
namespace {

struct Row {
  std::string_view name;  // name of the type in output and in files
  DType type;
  size_t bytes;
  bool floating;
};

// The first row of a type has its printed name. Further rows of the type have accepted aliases.
constexpr Row kTypes[] = {
    {"f64", DType::f64, 8, true},     {"f32", DType::f32, 4, true},     {"bf16", DType::bf16, 2, true},
    {"f16", DType::f16, 2, true},     {"i64", DType::i64, 8, false},    {"i32", DType::i32, 4, false},
    {"i16", DType::i16, 2, false},    {"i8", DType::i8, 1, false},      {"u8", DType::u8, 1, false},
    {"fp64", DType::f64, 8, true},    {"fp32", DType::f32, 4, true},    {"fp16", DType::f16, 2, true},
    {"double", DType::f64, 8, true},  {"float", DType::f32, 4, true},   {"bfloat16", DType::bf16, 2, true},
    {"half", DType::f16, 2, true},    {"float64", DType::f64, 8, true}, {"float32", DType::f32, 4, true},
    {"float16", DType::f16, 2, true}, {"int64", DType::i64, 8, false},  {"int32", DType::i32, 4, false},
    {"int16", DType::i16, 2, false},  {"int8", DType::i8, 1, false},    {"uint8", DType::u8, 1, false},
};

const Row& row_of(DType type) {
  for (const Row& row : kTypes)
    if (row.type == type) return row;
  check_failed(__FILE__, __LINE__, "known dtype", fmt::format("{}", static_cast<int>(type)));
}

}  // namespace

size_t size_of(DType type) {
  return row_of(type).bytes;
}
std::string_view name_of(DType type) {
  return row_of(type).name;
}
bool is_floating(DType type) {
  return row_of(type).floating;
}
DType parse_dtype(std::string_view name) {
  return find_row("element type", kTypes, name).type;
}

}  // namespace esp

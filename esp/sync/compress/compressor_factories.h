// Factory functions of the compressor table (compressors.cpp), each defined in the file of its compressor.
#pragma once

#include "esp/sync/compress/compressor.h"
#include "esp/sync/compress/spec_arguments.h"

namespace esp::sync {

std::unique_ptr<Compressor> make_identity(SpecArguments& arguments);
std::unique_ptr<Compressor> make_fp16(SpecArguments& arguments);
std::unique_ptr<Compressor> make_bf16(SpecArguments& arguments);
std::unique_ptr<Compressor> make_int8(SpecArguments& arguments);
std::unique_ptr<Compressor> make_int4(SpecArguments& arguments);
std::unique_ptr<Compressor> make_levels(SpecArguments& arguments);
std::unique_ptr<Compressor> make_qsgd(SpecArguments& arguments);
std::unique_ptr<Compressor> make_natural(SpecArguments& arguments);
std::unique_ptr<Compressor> make_sign(SpecArguments& arguments);
std::unique_ptr<Compressor> make_one_bit(SpecArguments& arguments);
std::unique_ptr<Compressor> make_top_k(SpecArguments& arguments);
std::unique_ptr<Compressor> make_random_k(SpecArguments& arguments);
std::unique_ptr<Compressor> make_threshold(SpecArguments& arguments);

}  // namespace esp::sync

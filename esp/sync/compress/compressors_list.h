// Factories of the rows of compressors.cpp, each in the file of its name.
#pragma once

#include "esp/sync/compress/arguments.h"
#include "esp/sync/compress/compressor.h"

namespace esp::sync {

std::unique_ptr<Compressor> make_identity(Arguments& arguments);
std::unique_ptr<Compressor> make_fp16(Arguments& arguments);
std::unique_ptr<Compressor> make_bf16(Arguments& arguments);
std::unique_ptr<Compressor> make_int8(Arguments& arguments);
std::unique_ptr<Compressor> make_int4(Arguments& arguments);
std::unique_ptr<Compressor> make_levels(Arguments& arguments);
std::unique_ptr<Compressor> make_qsgd(Arguments& arguments);
std::unique_ptr<Compressor> make_natural(Arguments& arguments);
std::unique_ptr<Compressor> make_sign(Arguments& arguments);
std::unique_ptr<Compressor> make_one_bit(Arguments& arguments);
std::unique_ptr<Compressor> make_top_k(Arguments& arguments);
std::unique_ptr<Compressor> make_random_k(Arguments& arguments);
std::unique_ptr<Compressor> make_threshold(Arguments& arguments);

}  // namespace esp::sync

// Building blocks of the dry-run layers: each allocates and records as the function of the same name in esp/autograd,
// esp/parallel/tp or esp/parallel/cp does.
#pragma once

#include <vector>

#include "esp/plan/ghost/layers.h"

namespace esp::plan::ghost {

inline constexpr int64_t kStatistic = 4;  // bytes

std::vector<Weight*> trained(std::initializer_list<Weight*> weights);  // the non-null ones
void use(Tape& tape, Weight* weight);

Variable add(Tape& tape, const Variable& a, const Variable& b);
Variable dropout(Tape& tape, const Sizes& s, const Variable& x);
Variable add_bias(Tape& tape, const Variable& x, Weight* b);
Variable rotary(Tape& tape, const Variable& x);

struct Normed {
  Variable sum, y;
};
// Without a branch the sum is x itself.
Normed norm(Tape& tape, const Sizes& s, const Variable& x, const Variable& branch, Weight* gamma, Weight* beta);

// Column- and row-parallel GEMMs over the tensor axis; whole GEMMs with one rank.
Variable columns(Tape& tape, const Sizes& s, const Variable& x, int64_t out, Weight* w, Weight* b);
Variable rows(Tape& tape, const Sizes& s, const Variable& h, Weight* w, Weight* b);
// `keep`: the output of the activation is kept for backward.
Variable perceptron(Tape& tape, const Sizes& s, const Variable& x, const BlockWeights& w, bool keep);

Variable attention(Tape& tape, const Sizes& s, const Variable& qkv);

}  // namespace esp::plan::ghost

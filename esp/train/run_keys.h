// Which keys of a run file a run reads: Field::read_by, evaluated.
//
// A condition is "section.key = a, b" (one of these values) or "section.key != a" (none of these); " and " joins
// conditions that must all hold, " or " divides alternatives. A value of several words ("qwz,hpz") or with a parameter
// ("topk:0.01") matches by any word before its colon. A condition holds only where its own key is read.
#pragma once

#include <string>
#include <vector>

#include "esp/train/run_config.h"

namespace esp::train {

// A value as --set takes it: words without quotes.
std::string plain_text(const Field& field);

// The configuration in one form: choices that are left to others are made, and words that mean the same are one word.
RunConfig settled(RunConfig config);

// `all`: the fields of a settled configuration.
bool is_read(const std::vector<Field>& all, const Field& field);
// Whether ranks of one run may have other values of a key: paths, whose contents are compared instead
// (data_identity.h), and what only the rank or host that has it feels. All other keys are equal on all ranks.
bool may_differ_by_rank(const Field& field);

// Empty where the run reads it; else «sync.tau = 4: read only with sync.method = local; this run has …».
std::string why_unread(const std::vector<Field>& all, const Field& field);

}  // namespace esp::train

// The post_processor of a tokenizer.json, as far as ids go: what is put before and after a single text.
//
//   TemplateProcessing                  the special tokens around "A" of its "single" template
//   BertProcessing, RobertaProcessing   cls before, sep after
//   ByteLevel                           nothing: it moves offsets only
//   Sequence                            what the one part puts there that adds tokens (`tokenizers` runs no second one)
#pragma once

#include <string_view>

#include "esp/base/json.h"
#include "esp/data/tokenizer/tokenizer.h"

namespace esp::data {

// `rest` is the file without its vocabulary. Other kinds are an IoError that names them.
TextTemplate read_post_processor(const Json& rest, std::string_view what);
// The same as JSON: null for an empty template.
Json compose_post_processor(const Tokenizer& tokenizer);

// What tokenizer_config.json adds: `add_bos_token` and `add_eos_token` where it has them. `class_decides`: the file the
// tokenizer was read from has no post-processor, so its `tokenizer_class` does.
void apply_tokenizer_config(Tokenizer& tokenizer, const Json& config, bool class_decides);

}  // namespace esp::data

// espalier convert SRC DST: converts between Espalier checkpoints and Hugging Face folders.
#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "esp/train/convert.h"
#include "esp/train/run_config.h"

namespace esp::app {
namespace {

struct ConvertOptions {
  std::string source, destination;
  double shard_gib = 4;
  train::ConvertOptions convert;
};

int run_convert(const ConvertOptions& options) {
  train::ConvertOptions convert = options.convert;
  convert.shard_bytes = static_cast<uint64_t>(options.shard_gib * 0x1p30);
  const train::Conversion done = train::convert(options.source, options.destination, convert);
  for (const std::string& note : done.notes) fmt::print(stderr, "{}\n", note);
  fmt::print(stderr, "{} with {} parameters in {}: {} ({}) → {} ({})\n", done.arch, done.num_parameters,
             train::precision_name(done.dtype), options.source, done.from_layout, options.destination, done.to_layout);
  return 0;
}

}  // namespace

void define_convert(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ConvertOptions>(app, chosen, run_convert);
  app.add_option("source", o->source, "a checkpoint, a run folder or a Hugging Face folder")
      .required()
      .type_name("SRC");
  app.add_option("destination", o->destination, "a new or empty folder").required().type_name("DST");
  app.add_option("--layout", o->convert.layout, "layout of DST: hf or espalier [the one that SRC does not have]")
      .type_name("NAME");
  app.add_option("--dtype", o->convert.dtype, "type of the weights in DST: fp32 or bf16 [as in SRC]").type_name("NAME");
  app.add_option("--shard-gib", o->shard_gib, "maximum size of one file, GiB").show_default().positive();
  app.add_option("--threads", o->convert.threads, "compute threads; 0: all cores").show_default().non_negative();
  app.footer("`transformers` loads the result of --layout hf as it is; train, generate and eval take either layout.");
}

}  // namespace esp::app

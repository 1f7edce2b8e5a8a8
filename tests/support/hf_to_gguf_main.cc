// cachalot_hf_to_gguf FOLDER LAYOUT OUT.gguf: the tests' converter as a program, for files that llama.cpp is
// asked to read. LAYOUT is legacy, hybrid or mainline, and matters to DeepSeek's MLA only.
#include <cstdio>
#include <string_view>

#include "support/hf_to_gguf.h"

int main(int argc, char** argv) {
  using cachalot::GgufMlaLayout;
  const std::string_view name = argc == 4 ? argv[2] : "";
  const auto layout = name == "legacy"   ? GgufMlaLayout::kLegacy
                      : name == "hybrid" ? GgufMlaLayout::kHybrid
                                         : GgufMlaLayout::kMainline;
  if (layout == GgufMlaLayout::kMainline && name != "mainline") {
    std::fprintf(stderr, "usage: cachalot_hf_to_gguf FOLDER legacy|hybrid|mainline OUT.gguf\n");
    return 2;
  }
  if (const auto status = cachalot::WriteHfAsGguf(argv[1], layout, argv[3]); !status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.message().c_str());
    return 1;
  }
  return 0;
}

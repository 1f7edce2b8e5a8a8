// What a template can do, found by rendering small conversations with it.
#pragma once

#include <functional>

#include "base/status.h"
#include "tokenizer/chat/chat_template.h"

namespace cachalot {

using RenderFn = std::function<Result<RenderedPrompt>(const ChatInput& input)>;

// Everything but mentions_enable_thinking. `render` renders messages as they are.
ChatTemplateCaps ProbeCaps(const RenderFn& render);

}  // namespace cachalot

// DeepSeek V3.2's syntax: <｜DSML｜invoke name="f"> with a <｜DSML｜parameter name="k" string="true"> for each
// argument. The values become the members of a JSON object: those marked string="true" are texts as they stand,
// the others JSON already. Some answers have the whole object in place of parameters: that is taken too.
#include <utility>

#include "tokenizer/chat/call_splitter.h"

namespace cachalot {
namespace {

constexpr size_t kMaxHeaderBytes = 1024;

void AppendEscaped(char c, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"': *out += "\\\""; return;
    case '\\': *out += "\\\\"; return;
    case '\n': *out += "\\n"; return;
    case '\r': *out += "\\r"; return;
    case '\t': *out += "\\t"; return;
    default: break;
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20) {
    *out += c;
    return;
  }
  *out += "\\u00";
  *out += kHex[byte >> 4];
  *out += kHex[byte & 15];
}

class DsmlSplitter final : public CallSplitter {
 public:
  explicit DsmlSplitter(AnswerWriter* writer) : CallSplitter(writer), arguments_(writer) {}

  const std::vector<std::string>& tags() const override {
    static const std::vector<std::string> tags = {
        "<｜DSML｜invoke name=\"",     "</｜DSML｜invoke>",    "<｜DSML｜parameter name=\"",
        "</｜DSML｜parameter>",        "<｜DSML｜function_calls>", "\n\n<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>"};
    return tags;
  }

  void Byte(char c) override {
    const std::string_view text(&c, 1);
    switch (where_) {
      case kContent:
        return Content(c);
      case kName:
        header_ += c;
        if (c == '>') return EndName();
        if (header_.size() > kMaxHeaderBytes) DropHeader();
        return;
      case kInvoke:
        if (c == '{' && num_parameters_ == 0) {
          where_ = kObject;
          arguments_.Begin();
          return arguments_.Byte(c);
        }
        return writer_.Markup(text);
      case kObject:
        return arguments_.Byte(c);
      case kParameter:
        header_ += c;
        if (c == '>' || header_.size() > kMaxHeaderBytes) BeginValue();
        return;
      case kValue:
        return Value(c);
    }
  }

  void Tag(size_t tag, std::string_view text) override {
    if (tag == kParameterBegin && (where_ == kInvoke || where_ == kValue)) {
      if (where_ == kValue) EndValue();
      writer_.Markup(text);
      where_ = kParameter;
      header_.clear();
      return;
    }
    if (tag == kParameterEnd && where_ == kValue) {
      EndValue();
      writer_.Markup(text);
      where_ = kInvoke;
      return;
    }
    Close(/*ends=*/tag == kInvokeEnd);
    Markup(text);
    if (tag == kInvokeBegin) {
      where_ = kName;
      header_.clear();
    }
  }

 private:
  bool IsText(std::string_view held) const override {
    // No text has this by chance, and the tag is of several tokens.
    if (where_ == kContent) return !after_markup_ && held.find("｜DSML") == held.npos;
    if (where_ == kObject) return arguments_.in_string();
    return where_ == kValue && held.find('<') == held.npos;  // white space
  }

  void End() override {
    if (where_ == kName || where_ == kParameter) return Markup(header_);
    if (where_ != kObject) return;
    arguments_.Cut();
    if (arguments_.complete()) writer_.CallEnd();
  }

  enum Where { kContent, kName, kInvoke, kObject, kParameter, kValue };
  static constexpr size_t kInvokeBegin = 0, kInvokeEnd = 1, kParameterBegin = 2, kParameterEnd = 3;

  void EndName() {
    const std::string header = std::exchange(header_, "");
    const std::string name = header.substr(0, header.find('"'));
    if (name.empty()) {
      where_ = kContent;
      return ContentOf(header);
    }
    writer_.CallName(name, name);
    writer_.Markup(std::string_view(header).substr(name.size()));
    where_ = kInvoke;
    num_parameters_ = 0;
  }

  void BeginValue() {
    const std::string header = std::exchange(header_, "");
    std::string text = num_parameters_++ == 0 ? "{\"" : ", \"";
    for (const char c : std::string_view(header).substr(0, header.find('"'))) AppendEscaped(c, &text);
    is_text_ = header.find("string=\"false\"") == header.npos;
    text += is_text_ ? "\": \"" : "\": ";
    writer_.Arguments(text, header);
    where_ = kValue;
    any_value_ = false;
  }

  void Value(char c) {
    const std::string_view raw(&c, 1);
    any_value_ = any_value_ || !IsJsonSpace(c);
    if (!is_text_) return writer_.Arguments(raw);
    std::string text;
    AppendEscaped(c, &text);
    writer_.Arguments(text, raw);
  }

  void EndValue() {
    if (is_text_) writer_.Arguments("\"", "");
    else if (!any_value_) writer_.Arguments("null", "");
  }

  void DropHeader() {
    where_ = kContent;
    ContentOf(std::exchange(header_, ""));
  }

  // ends: with its own tag. One that another tag ends keeps what it had.
  void Close(bool ends) {
    if (where_ == kName) return DropHeader();
    if (where_ == kObject) arguments_.End();
    if (where_ == kValue && ends) EndValue();
    if (where_ == kParameter) writer_.Markup(std::exchange(header_, ""));
    if (where_ != kContent) {
      const bool braces = where_ != kObject && (ends || num_parameters_ == 0);
      if (braces) writer_.Arguments(num_parameters_ == 0 ? "{}" : "}", "");
      writer_.CallEnd();
      after_markup_ = true;
    }
    where_ = kContent;
  }

  Where where_ = kContent;
  TaggedArguments arguments_;
  std::string header_;  // the rest of an opening tag
  int64_t num_parameters_ = 0;
  bool is_text_ = false;
  bool any_value_ = false;
};

}  // namespace

std::unique_ptr<CallSplitter> MakeDsmlSplitter(AnswerWriter* writer) {
  return std::make_unique<DsmlSplitter>(writer);
}

}  // namespace cachalot

#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace calc {

enum class Kind { Number, Name, Symbol, End };

struct Token {
    Kind kind;
    std::string text;
    double value;       // of a number
    std::size_t column; // counted from 1
};

// All tokens of the text; the last one is End. Raises Error.
std::vector<Token> tokenize(const std::string &text);

} // namespace calc

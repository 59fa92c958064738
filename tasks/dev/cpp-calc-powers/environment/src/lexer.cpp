#include "lexer.h"

#include "calc/calc.h"

#include <cctype>
#include <cstdlib>

namespace calc {

namespace {

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// A minus directly before a number is part of it where no value can come before it.
bool starts_number(const std::string &text, std::size_t at, const std::vector<Token> &before)
{
    if (is_digit(text[at]))
        return true;
    bool follows_operator = before.empty() || (before.back().kind == Kind::Symbol && before.back().text != ")");
    return text[at] == '-' && follows_operator && at + 1 < text.size() && is_digit(text[at + 1]);
}

} // namespace

std::vector<Token> tokenize(const std::string &text)
{
    std::vector<Token> tokens;
    std::size_t at = 0;
    while (at < text.size()) {
        std::size_t start = at;
        if (text[at] == ' ') {
            ++at;
        } else if (starts_number(text, at, tokens)) {
            ++at;
            while (at < text.size() && (is_digit(text[at]) || text[at] == '.'))
                ++at;
            std::string number = text.substr(start, at - start);
            char *end = nullptr;
            double value = std::strtod(number.c_str(), &end);
            if (*end != '\0')
                throw Error("bad number " + number, start + 1);
            tokens.push_back({Kind::Number, number, value, start + 1});
        } else if (is_letter(text[at])) {
            while (at < text.size() && (is_letter(text[at]) || is_digit(text[at])))
                ++at;
            tokens.push_back({Kind::Name, text.substr(start, at - start), 0, start + 1});
        } else if (std::string("+-*/^(),").find(text[at]) != std::string::npos) {
            ++at;
            tokens.push_back({Kind::Symbol, text.substr(start, 1), 0, start + 1});
        } else {
            throw Error(std::string("unexpected ") + text[at], start + 1);
        }
    }
    tokens.push_back({Kind::End, "", 0, text.size() + 1});
    return tokens;
}

} // namespace calc
